//! Whether the first row of a table names its columns.
//!
//! The rule, unless `--header` decides it. A word is a field that is neither a number nor a truth
//! value nor missing; a number can name a column if it has digits only.
//!
//! 1. A field of the first row is a column that was asked for by name: a heading.
//! 2. No field is a number, and one is a word: a heading.
//! 3. No field is a word: a row.
//! 4. A word stands above numbers: a heading if every number can name a column; otherwise the word
//!    is a damaged number of a row.
//! 5. Words stand above words only: a heading if the numbers can name columns, count up by one, and
//!    the words occur nowhere else in their columns; otherwise a row.
//!
//! What rules 4 and 5 decide is said, and what rule 3 decides if the numbers can name columns and
//! ascend.

use crate::cells::Cell;
use crate::{Note, Options};
use csv::StringRecord;

/// Returns whether the first of these rows is a heading, and what to say about it.
pub(crate) fn decide(rows: &[StringRecord], options: &Options) -> (bool, Option<Note>) {
    if let Some(header) = options.header {
        return (header, None);
    }
    let Some((first, below)) = rows.split_first() else { return (false, None) };
    if is_asked_for(first, options) {
        return (true, None);
    }
    let words: Vec<usize> = (0..first.len()).filter(|&k| is_word(&first[k])).collect();
    let numbers: Vec<&str> = first.iter().filter(|field| Cell::of(field, false).is_number()).collect();
    let can_name = numbers.iter().all(|field| field.bytes().all(|byte| byte.is_ascii_digit()));
    if words.is_empty() {
        let doubtful = can_name && numbers.len() == first.len() && numbers.len() > 1 && steps(&numbers, |a, b| a < b);
        return (false, doubtful.then(|| taken_as_row(first)));
    }
    if numbers.is_empty() {
        return (true, None);
    }
    // A label column given by its number may hold a word in one row and a number in the next.
    let numbered = options.label.as_ref().and_then(|name| name.parse::<usize>().ok());
    let above_numbers = |&column: &usize| numbered != Some(column + 1) && mostly_numbers(below, column);
    if words.iter().any(above_numbers) {
        return if can_name { (true, Some(taken_as_heading(first))) } else { (false, None) };
    }
    let unique = |&column: &usize| !below.iter().any(|row| row.get(column) == Some(&first[column]));
    let unique = words.iter().all(unique);
    match can_name && numbers.len() > 1 && unique && steps(&numbers, |a, b| a + 1 == b) {
        true => (true, Some(taken_as_heading(first))),
        false => (false, (can_name && unique && below.len() > 1).then(|| taken_as_row(first))),
    }
}

/// Returns whether a field of the first row is a name that was asked for. A number may be that of a
/// column, or a value: names of needed columns that are numbers must all be there.
fn is_asked_for(first: &StringRecord, options: &Options) -> bool {
    let has = |name: &str| first.iter().any(|field| field == name);
    let is_place = |name: &str| name.parse().is_ok_and(|number: usize| (1..=first.len()).contains(&number));
    let is_value = |name: &str| Cell::of(name, false).is_number();
    let expected = options.expected.as_deref().unwrap_or_default();
    options.names().any(|name| !is_place(name) && has(name))
        || expected.iter().any(|name| !is_value(name) && has(name))
        || !expected.is_empty() && expected.iter().all(|name| has(name))
}

pub(crate) fn is_word(field: &str) -> bool {
    matches!(Cell::of(field, false), Cell::Text(_))
}

fn mostly_numbers(rows: &[StringRecord], column: usize) -> bool {
    let cells = || rows.iter().filter_map(|row| row.get(column)).map(|field| Cell::of(field, false));
    let numbers = cells().filter(|cell| matches!(cell, Cell::Number(_) | Cell::Boolean(_))).count();
    let words = cells().filter(|cell| matches!(cell, Cell::Text(_))).count();
    numbers > words
}

fn steps(numbers: &[&str], right: fn(u64, u64) -> bool) -> bool {
    let parsed: Option<Vec<u64>> = numbers.iter().map(|field| field.parse().ok()).collect();
    parsed.is_some_and(|all| all.windows(2).all(|pair| right(pair[0], pair[1])))
}

fn taken_as_heading(first: &StringRecord) -> Note {
    let text =
        format!("the first line ({}) is taken as the names of the columns, although some are numbers", quoted(first));
    Note::new(text, "--header no")
}

fn taken_as_row(first: &StringRecord) -> Note {
    Note::new(
        format!("the first line ({}) is taken as a row, although it could name the columns", quoted(first)),
        "--header yes",
    )
}

/// The first and the last fields of a row.
fn quoted(record: &StringRecord) -> String {
    let fields: Vec<&str> = record.iter().collect();
    match &fields[..] {
        [a, b, _, _, .., z] => format!("{a}, {b}, …, {z}"),
        all => all.join(", "),
    }
}
