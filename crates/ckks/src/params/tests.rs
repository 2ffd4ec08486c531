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
fn the_name_decides_nothing_but_the_permission() {
    let toy = Params::named("insecure-toy11").unwrap();
    assert_eq!(toy.security(), Security::None);
    assert_ne!(toy.id(), Params::named("insecure-toy12").unwrap().id());
    let renamed = Params::new(like_full("insecure-other", 11)).unwrap();
    assert_eq!((toy.id(), toy.tag()), (renamed.id(), renamed.tag()));
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
