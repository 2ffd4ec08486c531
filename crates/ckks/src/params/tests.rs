#![allow(clippy::unwrap_used)]
use super::built_in::like_full;
use super::*;

#[test]
fn every_built_in_set_is_valid_and_secure_or_says_so() {
    for literal in &BUILT_IN {
        let params = Params::named(&literal.name).unwrap();
        assert!(params.is_insecure_by_name() || params.security().bits() >= 128.0, "{}", params.name());
        assert_eq!(
            params.limbs(params.top_level()) + literal.eval_mod_primes.len() + literal.coeffs_to_slots.len(),
            params.chain().len()
        );
    }
    let full = Params::named("full").unwrap();
    assert_eq!(full.top_level(), 13);
    assert!((full.security().bits() - 132.2).abs() < 0.2, "{}", full.security());
}

#[test]
fn digits_fit_under_the_special_primes() {
    let full = Params::named("full").unwrap();
    assert_eq!(full.digit_starts(), [0, 8, 16, 23]);
    assert_eq!([29, 23, 17, 16, 8].map(|limbs| full.digits(limbs)), [4, 3, 3, 2, 1]);
    assert_eq!(full.special_for(29), 7);
    assert_eq!(full.special_for(4), 4);
    assert_eq!(full.special_for(1), 2);
}

#[test]
fn bad_literals_are_refused_with_a_reason() {
    let broken = |change: fn(&mut ParamsLiteral)| {
        let mut literal = like_full("full", 16);
        change(&mut literal);
        Params::new(literal).unwrap_err().to_string()
    };
    assert!(broken(|l| l.log_n = 15).contains("under 128 bits"));
    assert!(broken(|l| l.q0 += 2).contains("no prime"));
    assert!(broken(|l| l.q0 = 1125899902124033).contains("appears twice"));
    assert!(broken(|l| l.eval_mod.degree = 15).contains("EvalMod takes 8"));
    assert!(broken(|l| l.coeffs_to_slots = Cow::Borrowed(&[])).contains("both kinds"));
    assert!(broken(|l| l.log_scale = 44).contains("drift"));
    assert!(broken(|l| l.special = Cow::Borrowed(&[])).contains("special"));
    assert!(broken(|l| l.name = "../full".into()).contains("a name is"));
    assert!(broken(|l| l.log_n = 64).contains("log N = 64"));
    assert!(broken(|l| l.log_scale = 4000).contains("log scale"));
    assert!(broken(|l| l.secret_weight = usize::MAX).contains("secret weight"));
    assert!(broken(|l| l.eval_mod.squarings = usize::MAX).contains("squarings"));
    assert!(broken(|l| l.q0 = 2).contains("below 2^16"));
    assert!(broken(|l| l.usable = vec![4398044938241; 100].into()).contains("more than 64"));
    assert!(broken(|l| l.sparse_weight = 16).contains("ephemeral"));
    assert!(broken(|l| l.special = l.special[..2].to_vec().into()).contains("digits"));
    assert!(broken(|l| l.special.to_mut().extend(hetal_ring::prime::ntt_primes_below(45, 16, 2))).contains("special"));
    assert!(Params::named("huge").unwrap_err().to_string().contains("insecure-toy11"));
}

#[test]
fn the_name_of_a_set_does_not_change_its_id() {
    let toy = Params::named("insecure-toy11").unwrap();
    assert_eq!(toy.security(), Security::None);
    assert_ne!(toy.id(), Params::named("insecure-toy12").unwrap().id());
    let renamed = Params::new(like_full("insecure-other", 11)).unwrap();
    assert_eq!((toy.id(), toy.tag()), (renamed.id(), renamed.tag()));
}

/// The built-in sets have the documented figure; a range one smaller makes bootstraps fail with
/// 2^-62, which a set must be named insecure for.
#[test]
fn bootstraps_that_fail_too_often_need_the_word_insecure() {
    let failure = |name: &str| Params::named(name).unwrap().log_bootstrap_failure().unwrap();
    assert!((failure("full") + 86.4).abs() < 0.05 && (failure("small") + 87.4).abs() < 0.05);
    let smaller_range = |name: &'static str| {
        let mut literal = like_full(name, 16);
        literal.eval_mod.k = 14;
        Params::new(literal)
    };
    let refused = smaller_range("mine").unwrap_err();
    assert!(matches!(refused, Error::UnreliableBootstrap { .. }), "{refused}");
    assert!(refused.to_string().contains("2^-62") && refused.to_string().contains("2^-80"), "{refused}");
    let insecure = smaller_range("insecure-mine").unwrap();
    assert!((insecure.log_bootstrap_failure().unwrap() + 62.1).abs() < 0.05);
    // The sum of 32 numbers never exceeds 16.
    let mut literal = like_full("mine", 16);
    (literal.sparse_weight, literal.eval_mod.k) = (31, 16);
    assert_eq!(super::checks::log_failure(&literal), f64::NEG_INFINITY);
    let leveled = Params::from_bits(&BitSizes::leveled("leveled", 14, 5, 30)).unwrap();
    assert_eq!(leveled.log_bootstrap_failure(), None);
}

/// The bound is above the frequency of overflows in a simulation, and not by much.
#[test]
fn the_bound_on_failures_holds_in_a_simulation() {
    let mut literal = like_full("insecure-short", 10);
    (literal.sparse_weight, literal.eval_mod.k) = (7, 3);
    let bound = libm::exp2(super::checks::log_failure(&literal) - 10.0);
    let mut state = 1u64;
    let mut uniform = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 11) as f64 / (1u64 << 53) as f64 - 0.5
    };
    let runs = 1 << 22;
    let outside = (0..runs).filter(|_| (0..8).map(|_| uniform()).sum::<f64>().abs() > 3.0).count();
    let frequency = outside as f64 / f64::from(runs);
    assert!(frequency <= bound * 1.2 && bound <= 1.5 * frequency, "{frequency:e}, at most {bound:e}");
}

#[test]
fn a_bootstrap_that_cannot_work_is_refused() {
    let full = Params::named("full").unwrap().literal().clone();
    let refused = |change: fn(&mut ParamsLiteral)| {
        let mut literal = full.clone();
        literal.name = "insecure-other".into();
        change(&mut literal);
        Params::new(literal).err().map(|e| e.to_string()).unwrap_or_default()
    };
    assert_eq!(refused(|_| ()), "");
    assert!(refused(|l| l.eval_mod.k = 7).contains("is exceeded"), "{}", refused(|l| l.eval_mod.k = 7));
    assert!(refused(|l| l.sparse_weight = 128).contains("is exceeded"));
    assert!(refused(|l| l.eval_mod.degree = 16).contains("is wrong by"));
}
