#!/usr/bin/env bash
# Measures on one GPU what docs/status.md says about it.
#
#     gpu.sh PROGRAMS DATA OUT [STEP ...]
#
# PROGRAMS is a folder with `hetal` and `hetal-server`, DATA one with the folders `snips` and
# `facemask` of features_{train,val,test}.npy and labels_{train,val,test}.npy. BEFORE in the
# environment is a folder of programs of an earlier build, to compare with in the same run. OUT gets
# a file of results and a log for each step, and `steps`: exit status, seconds and name. A step that
# fails does not end the others. Without STEP, all are run; `grep '^step_' gpu.sh` lists them.
#
# ENGINE=cpu and SET=insecure-toy11 rehearse it on a machine without a GPU. The steps of iterations
# need a larger set than that one.
set -uo pipefail
programs=$(realpath "${1:?programs}")
data=$(realpath "${2:?data}")
mkdir -p "${3:?out}"
out=$(realpath "$3")
shift 3
engine=${ENGINE:-cuda}
set_name=${SET:-full}
iterations=${ITERATIONS:-120}
trainings=${TRAININGS:-10}
scripts=$(cd "$(dirname "$0")" && pwd)
before=${BEFORE:+$(realpath "$BEFORE")}
hetal=$programs/hetal
keys=(--more-keys)
[ "$engine" = cuda ] || keys=()

bench() {
    "$hetal" bench "$@" --engine "$engine" --json
}

# GPU and CPU give the same bytes.
step_selftest() {
    "$hetal" selftest --engine "$engine" --set "$set_name,insecure-toy11"
    "$hetal" selftest --engine "$engine" --set insecure-toy11 --shake 5
}

# A bootstrap with the keys of each plan.
step_plans() {
    for plan in fast balanced small; do
        bench ops --set "$set_name" --key-plan "$plan"
    done
}

# Iterations of the shapes of the paper, on random rows.
step_iterations() {
    for shape in mnist cifar10 facemask dermamnist snips; do
        bench train --set "$set_name" --shape "$shape" --iterations "$iterations" --versions resident "${keys[@]}"
    done
    bench train --set "$set_name" --batch 1024 --features 196 --classes 2 --iterations "$iterations" \
        --versions resident "${keys[@]}"
}

# The same training with the keys of each plan.
step_iterations_by_plan() {
    for plan in fast balanced small; do
        bench train --set "$set_name" --shape snips --iterations 40 --key-plan "$plan"
    done
}

# Ciphertexts in coefficient form, lifted.
step_lifts() {
    bench upload --set "$set_name" "${keys[@]}" --lifts 100
}

# Real features to early stopping, in both forms of rows.
step_real() {
    for folder in snips facemask; do
        for form in coefficients slots; do
            bench train --set "$set_name" --shape "$folder" --data "$data/$folder" --patience 3 \
                --versions resident "${keys[@]}" --rows-form "$form"
        done
    done
}

# Real features with the defaults, client and server in processes of their own.
step_upload_to_model() {
    local options="sets = [\"$set_name\"]"$'\n'"engine = \"$engine\"" work
    [[ $set_name != insecure-* ]] || options+=$'\nallow_insecure = true'
    for folder in snips facemask; do
        for build in "$programs" ${before:+"$before"}; do
            work=$(mktemp -d)
            server_options=$options \
                "$scripts/upload_to_model.py" "$build" "$data/$folder" "$work/run" --set "$set_name"
            rm -rf "$work"
        done
    done
}

# The noise bound of published models: on real features and random rows, then with bootstraps 32
# times as loud as the bound believes.
step_releases() {
    bench releases --set "$set_name" --features "$data/snips,$data/facemask" "${keys[@]}"
    bench releases --set "$set_name" --first 400 --trainings "$trainings" "${keys[@]}"
}
step_loud_releases() {
    bench releases --set "$set_name" --first 400 --trainings 2 --louder 32 "${keys[@]}"
}

steps=("$@")
[ ${#steps[@]} -gt 0 ] || mapfile -t steps < <(declare -F | sed -n 's/^declare -f step_//p')
: >"$out/steps"
for step in "${steps[@]}"; do
    began=$SECONDS
    (set -e; "step_$step") >"$out/$step.json" 2>"$out/$step.log"
    echo "$? $((SECONDS - began)) $step" | tee -a "$out/steps"
done
! grep -vq '^0 ' "$out/steps"
