//! The parameter sets that have a name.

use super::{EvalMod, ParamsLiteral};
use std::borrow::Cow;

// EvalMod of all sets. K: a raised coefficient over q0 is a sum of 33 uniform numbers of
// [-1/2, 1/2] (the ephemeral secret has weight 32). It exceeds 15 with probability 2 (1.5^33 - 33
// 0.5^33) / 33! = 2^-102.4, which is 2^-86 for all coefficients of N = 2^16. Degree: the frequency
// of the series is 2 pi K / 2^3 = 11.8, and the first Bessel coefficient left out, J_32(11.8), is
// 2^-37.3. Later steps amplify it at most 2^9 times, to 2^-28. Two squarings and degree 55 take as
// many levels and more relinearisations, and amplify the noise of T_32 more than a squaring does.

/// The set `full`: 13 usable levels at 132 bits. The toy sets have the same chain in a ring that is
/// too small to be secure.
pub(super) const fn like_full(name: &'static str, log_n: u32) -> ParamsLiteral {
    ParamsLiteral {
        name: Cow::Borrowed(name),
        log_n,
        secret_weight: 512,
        sparse_weight: 32,
        log_scale: 42,
        log_message_ratio: 8,
        q0: 1125899903827969,
        slots_to_coeffs: Cow::Borrowed(&[68718428161, 68724326401, 68724719617]),
        usable: Cow::Borrowed(&[
            4398044938241,
            4398043496449,
            4398042972161,
            4398042185729,
            4398052147201,
            4398052540417,
            4398053588993,
            4398054506497,
            4398054899713,
            4398055555073,
            4398058045441,
            4398034845697,
            4398063157249,
        ]),
        eval_mod_primes: Cow::Borrowed(&[
            1125899902124033,
            1125899887312897,
            1125899886395393,
            1125899885740033,
            1125899884167169,
            1125899884036097,
            1125899883642881,
            1125899883380737,
            1125899882987521,
        ]),
        coeffs_to_slots: Cow::Borrowed(&[1125899879710721, 1125899877875713, 1125899870404609]),
        special: Cow::Borrowed(&[
            2251799813554177,
            2251799810670593,
            2251799809884161,
            2251799807131649,
            2251799806345217,
            2251799805165569,
            2251799799267329,
        ]),
        eval_mod: EvalMod { k: 15, degree: 31, squarings: 3, correction: true },
    }
}

/// The set `small`: half the degree, for inference and low precision. The squarings of EvalMod use
/// ever smaller primes, because their noise is amplified less than that of the steps before them.
/// The saved bits pay for a third coefficients-to-slots matrix, which takes 126 diagonals instead
/// of 383.
const SMALL: ParamsLiteral = ParamsLiteral {
    name: Cow::Borrowed("small"),
    log_n: 15,
    secret_weight: 512,
    sparse_weight: 32,
    log_scale: 31,
    log_message_ratio: 9,
    q0: 4398044938241,
    slots_to_coeffs: Cow::Borrowed(&[268369921, 268238849]),
    usable: Cow::Borrowed(&[2146041857, 2148728833, 2148794369, 2146959361, 2147352577]),
    eval_mod_primes: Cow::Borrowed(&[
        68720066561,
        274879414273,
        1099512938497,
        4398043496449,
        4398042972161,
        4398042513409,
        4398042185729,
        4398038450177,
    ]),
    coeffs_to_slots: Cow::Borrowed(&[4398037794817, 4398035304449, 4398034911233]),
    special: Cow::Borrowed(&[35184368877569, 35184368025601, 35184367828993]),
    eval_mod: EvalMod { k: 15, degree: 31, squarings: 3, correction: false },
};

/// The built-in sets.
pub static BUILT_IN: [ParamsLiteral; 4] =
    [like_full("full", 16), SMALL, like_full("insecure-toy11", 11), like_full("insecure-toy12", 12)];
