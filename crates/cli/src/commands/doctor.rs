//! `hetal doctor`: reports what this machine can do.

use crate::Result;
use crate::terminal::format::{bytes, security};
use crate::terminal::output::print;
use crate::terminal::progress;
use hetal_circuits::bootstrap;
use hetal_ckks::Params;
use hetal_ckks::params::BUILT_IN;
use hetal_client::layout::server_bytes;
use hetal_cuda::CudaBackend;
use hetal_local::machine::{available_memory_bytes, free_disk_bytes, memory_bytes};
use hetal_ring::Isa;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Arguments of `hetal doctor`.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// A folder on the disk to check.
    #[arg(long, default_value = ".")]
    pub dir: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let value = to_json(&arguments.dir)?;
    print(arguments.json, &value, &text(&value));
    Ok(())
}

fn to_json(folder: &Path) -> Result<Value> {
    let spinner = progress::spinner("checking GPUs (kernels are compiled the first time)");
    let gpus = gpus(&Params::named("full")?);
    spinner.finish_and_clear();
    let first = gpus.as_ref().ok().and_then(|gpus| gpus.iter().find(|gpu| gpu["name"].is_string()));
    let none = match &gpus {
        Ok(gpus) => gpus.iter().find_map(|gpu| gpu["error"].as_str().map(str::to_owned)),
        Err(error) => Some(error.clone()),
    };
    let available = available_memory_bytes();
    let sets: Vec<Value> = BUILT_IN
        .iter()
        .map(|literal| {
            let params = Params::named(&literal.name)?;
            // The keys of a training depend on its shape; those of the bootstrap dominate.
            let needs = server_bytes(&params, &bootstrap::keys(&params));
            Ok(json!({
                "set": literal.name,
                "security": security(&params),
                "server_memory_bytes": needs,
                "fits": available.is_none_or(|there| there >= needs),
            }))
        })
        .collect::<Result<_>>()?;
    Ok(json!({
        "threads": std::thread::available_parallelism().map_or(1, usize::from),
        "kernels": Isa::detect().name(),
        "features": cpu_features(),
        "gpus": gpus.as_deref().unwrap_or_default(),
        "gpu": first,
        "no_gpu_because": none.filter(|_| first.is_none()),
        "memory_bytes": memory_bytes(),
        "available_memory_bytes": available,
        "free_disk_bytes": free_disk_bytes(folder),
        "sets": sets,
    }))
}

/// Every GPU of the driver: its name and memory, or the reason why it cannot be used.
fn gpus(params: &Params) -> std::result::Result<Vec<Value>, String> {
    let open = |number| {
        let gpu = CudaBackend::open(number, params.log_n(), params.chain(), params.special())?;
        Ok::<_, hetal_cuda::Error>((gpu.describe(), gpu.memory()?.1))
    };
    let describe = |number: usize| match open(number) {
        Ok((name, memory)) => json!({ "number": number, "name": name, "memory_bytes": memory }),
        Err(error) => json!({ "number": number, "error": error.to_string() }),
    };
    Ok((0..hetal_cuda::cards().map_err(|e| e.to_string())?).map(describe).collect())
}

#[cfg(target_arch = "x86_64")]
fn cpu_features() -> Vec<&'static str> {
    let known = [
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512dq", is_x86_feature_detected!("avx512dq")),
        ("avx512ifma", is_x86_feature_detected!("avx512ifma")),
    ];
    known.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn cpu_features() -> Vec<&'static str> {
    Vec::new()
}

/// One line for each GPU, or a line with the reason why there is none.
fn gpu_lines(report: &Value) -> String {
    let line = |gpu: &Value| match gpu["name"].as_str() {
        Some(name) => {
            format!(
                "GPU {:<4} {name}, {}\n",
                gpu["number"],
                gpu["memory_bytes"].as_u64().map_or_else(String::new, bytes)
            )
        }
        None => format!("GPU {:<4} cannot be used: {}\n", gpu["number"], gpu["error"].as_str().unwrap_or_default()),
    };
    let lines: String = report["gpus"].as_array().into_iter().flatten().map(line).collect();
    if lines.is_empty() { format!("GPU      {}\n", report["no_gpu_because"].as_str().unwrap_or("none")) } else { lines }
}

fn text(report: &Value) -> String {
    let size = |value: &Value| value.as_u64().map_or_else(|| "unknown".to_owned(), bytes);
    let list = |value: &Value| {
        let texts = value.as_array().into_iter().flatten().filter_map(Value::as_str);
        texts.collect::<Vec<_>>().join(", ")
    };
    let mut text = format!(
        "CPU      {} threads; kernels: {} (CPU features: {})\n{}memory   {}, {} available\ndisk     {} free\n",
        report["threads"],
        report["kernels"].as_str().unwrap_or_default(),
        list(&report["features"]),
        gpu_lines(report),
        size(&report["memory_bytes"]),
        size(&report["available_memory_bytes"]),
        size(&report["free_disk_bytes"]),
    );
    for set in report["sets"].as_array().into_iter().flatten() {
        let fits = if set["fits"].as_bool() == Some(true) { "fits" } else { "does not fit in the available memory" };
        text += &format!(
            "set      {}: {}; a server needs {} plus prepared batches: {fits}\n",
            set["set"].as_str().unwrap_or_default(),
            set["security"].as_str().unwrap_or_default(),
            size(&set["server_memory_bytes"]),
        );
    }
    text + "A data owner needs less: 1 GiB of memory, and disk space for keys and encrypted rows (see `hetal plan`)."
}
