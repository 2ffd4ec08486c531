//! Parameter sets.

use super::envelope::Fields;
use super::{EnvelopeReader, EnvelopeWriter, FormatError, Header, ObjectKind, Result, in_range, parse_all};
use crate::params::{MAX_NAME, MAX_PRIMES, Primes};
use crate::{EvalMod, Params, ParamsLiteral};
use std::io::{Read, Write};

/// Bytes of the fields every set has: ten numbers, and the lengths of its name and of its five
/// lists of primes.
const FIXED: usize = 10 * 8 + 6 * 4;

/// Its lists of primes, in the order in which they are written.
fn lists(literal: &ParamsLiteral) -> [&Primes; 5] {
    [&literal.slots_to_coeffs, &literal.usable, &literal.eval_mod_primes, &literal.coeffs_to_slots, &literal.special]
}

impl Params {
    /// Writes the set.
    pub fn write(&self, out: &mut impl Write) -> Result<()> {
        let literal = self.literal();
        let primes: usize = lists(literal).iter().map(|list| list.len()).sum();
        let body_len = (FIXED + literal.name.len() + 8 * primes) as u64;
        let mut sink = EnvelopeWriter::open(out, &Header { kind: ObjectKind::Params, params: *self.id(), body_len })?;
        let EvalMod { k, degree, squarings, correction } = literal.eval_mod;
        let numbers = [
            literal.log_n.into(),
            literal.secret_weight as u64,
            literal.sparse_weight as u64,
            literal.log_scale.into(),
            literal.log_message_ratio.into(),
            k.into(),
            degree as u64,
            squarings as u64,
            correction.into(),
            literal.q0,
        ];
        numbers.iter().try_for_each(|x: &u64| sink.bytes(&x.to_le_bytes()))?;
        let lengths = std::iter::once(literal.name.len()).chain(lists(literal).map(|list| list.len()));
        lengths.map(|len| len as u32).try_for_each(|len| sink.bytes(&len.to_le_bytes()))?;
        sink.bytes(literal.name.as_bytes())?;
        lists(literal).iter().flat_map(|list| list.iter()).try_for_each(|q| sink.bytes(&q.to_le_bytes()))?;
        sink.close().map(|_| ())
    }

    /// Reads a set and validates it as [`Params::new`] does.
    pub fn read(input: &mut impl Read) -> Result<Self> {
        let mut source = EnvelopeReader::open(input, ObjectKind::Params)?;
        let literal = read_literal(&mut source)?;
        let expected = source.header().params;
        source.close()?;
        let params = Self::new(literal).map_err(|e| FormatError::InvalidParams { reason: e.to_string() })?;
        if *params.id() == expected {
            return Ok(params);
        }
        Err(FormatError::Params { found: *params.id(), expected })
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.write(&mut bytes)?;
        Ok(bytes)
    }

    /// The set that these bytes, all of them, are.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        parse_all(bytes, |rest| Self::read(rest))
    }
}

fn read_literal<R: Read>(source: &mut EnvelopeReader<'_, R>) -> Result<ParamsLiteral> {
    let bytes: [u8; FIXED] = source.array("a parameter set")?;
    let mut fields = Fields(&bytes);
    let numbers: [u64; 10] = std::array::from_fn(|_| fields.u64());
    let lengths: [u32; 6] = std::array::from_fn(|_| fields.u32());
    let [name_len, counts @ ..] = lengths;
    if name_len as usize > MAX_NAME {
        return Err(FormatError::Count { what: "bytes of a name", found: name_len.into(), most: MAX_NAME });
    }
    for count in counts {
        in_range("primes of a part", count, 0, MAX_PRIMES)?;
    }
    let primes: u64 = counts.iter().map(|&count| u64::from(count)).sum();
    source.require_len(FIXED as u64 + u64::from(name_len) + 8 * primes)?;
    let name = source.slice(name_len as usize, 0, "a parameter set's name")?;
    let name = std::str::from_utf8(name).map_err(|_| FormatError::Text)?.to_owned();
    let mut list = |count: u32| -> Result<Primes> {
        (0..count)
            .map(|_| Ok(u64::from_le_bytes(source.array("a list of primes")?)))
            .collect::<Result<Vec<_>>>()
            .map(Primes::Owned)
    };
    let [slots_to_coeffs, usable, eval_mod_primes, coeffs_to_slots, special] = counts;
    Ok(ParamsLiteral {
        name: name.into(),
        log_n: small(numbers[0])?,
        secret_weight: small(numbers[1])? as usize,
        sparse_weight: small(numbers[2])? as usize,
        log_scale: small(numbers[3])?,
        log_message_ratio: small(numbers[4])?,
        eval_mod: EvalMod {
            k: small(numbers[5])?,
            degree: small(numbers[6])? as usize,
            squarings: small(numbers[7])? as usize,
            correction: flag(numbers[8])?,
        },
        q0: numbers[9],
        slots_to_coeffs: list(slots_to_coeffs)?,
        usable: list(usable)?,
        eval_mod_primes: list(eval_mod_primes)?,
        coeffs_to_slots: list(coeffs_to_slots)?,
        special: list(special)?,
    })
}

fn small(x: u64) -> Result<u32> {
    u32::try_from(x).map_err(|_| FormatError::InvalidParams { reason: format!("{x} is no number of a parameter set") })
}

fn flag(x: u64) -> Result<bool> {
    match x {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(FormatError::InvalidParams { reason: format!("{x} is neither 0 nor 1") }),
    }
}
