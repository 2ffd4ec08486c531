//! Columns, chosen by name or by number.

use crate::{FileProblem, MAX_FEATURES, Note, Options, Parsed};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Its name, if the file has names.
    pub name: Option<String>,
    /// Its number in the file, counted from 1.
    pub number: usize,
}

impl std::fmt::Display for Column {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.name {
            Some(name) => f.write_str(name),
            None => write!(f, "{}", self.number),
        }
    }
}

/// The columns of a file.
pub(crate) struct Columns<'a> {
    names: Option<&'a [String]>,
    width: usize,
    places: HashMap<&'a str, usize>,
    /// Columns of an index, which are left out unless they are asked for.
    is_index: &'a [bool],
}

/// Which columns are features, and which ones hold labels and weights.
pub(crate) struct Selection {
    /// The places of the features in a row of the file.
    pub features: Vec<usize>,
    /// The place of the label.
    pub label: Option<usize>,
    /// The place of the names of rows.
    pub id: Option<usize>,
    /// The place of the weight.
    pub weight: Option<usize>,
    /// What was left out without being asked for.
    pub notes: Vec<Note>,
}

impl<'a> Columns<'a> {
    /// Columns with or without names, as many as `width`.
    pub fn new(names: Option<&'a [String]>, width: usize) -> Self {
        let mut places = HashMap::new();
        for (place, name) in names.into_iter().flatten().enumerate() {
            places.entry(name.as_str()).or_insert(place);
        }
        Self { names, width, places, is_index: &[] }
    }

    /// The same columns, some of which are an index.
    pub fn with_index(self, is_index: &'a [bool]) -> Self {
        Self { is_index, ..self }
    }

    /// The column with this index.
    pub fn column(&self, index: usize) -> Column {
        Column { name: self.names.and_then(|names| names.get(index)).cloned(), number: index + 1 }
    }

    /// The index of a column by its name, or by its number counted from 1.
    pub fn index_of(&self, name: &str) -> Parsed<usize> {
        if let Some(&place) = self.places.get(name) {
            self.require_unique(place)?;
            return Ok(place);
        }
        let number = name.parse::<usize>().ok().filter(|number| (1..=self.width).contains(number));
        number.map(|number| number - 1).ok_or_else(|| self.unknown(name))
    }

    fn unknown(&self, name: &str) -> FileProblem {
        let parts: Vec<&str> = name.split(',').map(str::trim).collect();
        if parts.len() > 1 && parts.iter().all(|part| self.places.contains_key(part)) {
            return FileProblem::SeveralLabels { column: name.to_owned(), found: parts.len() };
        }
        let known = match self.names {
            Some(names) => names.join(", "),
            None => format!("columns 1 to {} (no header)", self.width),
        };
        FileProblem::Missing { what: format!("column {name}"), known }
    }

    fn require_unique(&self, place: usize) -> Parsed<()> {
        let Some(name) = self.names.and_then(|names| names.get(place)) else { return Ok(()) };
        match self.names.into_iter().flatten().filter(|other| *other == name).count() {
            0 | 1 => Ok(()),
            _ => Err(FileProblem::Duplicate { what: "columns", name: name.clone() }),
        }
    }

    /// Chooses features, labels and weights.
    pub fn select(&self, options: &Options) -> Parsed<Selection> {
        let places = |names: &[String]| names.iter().map(|name| self.index_of(name)).collect::<Parsed<Vec<usize>>>();
        let label = options.label.as_ref().map(|name| self.index_of(name)).transpose()?;
        let id = options.id.as_ref().map(|name| self.index_of(name)).transpose()?;
        let weight = options.weight.as_ref().map(|name| self.index_of(name)).transpose()?;
        if let Some(place) = label.filter(|_| label == weight) {
            return Err(FileProblem::LabelAndWeight { column: self.column(place).to_string() });
        }
        // A column that is left out may have the name of another one: its number says which.
        let dropped = places(&options.drop)?;
        let mut notes = Vec::new();
        let is_expected = |place: usize| {
            let name = self.names.and_then(|names| names.get(place));
            options.expected.iter().flatten().any(|expected| Some(expected) == name)
        };
        let mut features: Vec<usize> = match &options.columns[..] {
            [] => {
                let is_index = |&place: &usize| self.is_index.get(place) == Some(&true) && !is_expected(place);
                let index =
                    (0..self.width).filter(is_index).filter(|&place| ![label, id, weight].contains(&Some(place)));
                let index = index.filter(|place| !dropped.contains(place)).map(|place| self.column(place).to_string());
                notes.extend(index.map(|name| {
                    let text = format!("column {name} is the index of a pandas table and is not used");
                    Note::new(text, format!("--drop {name}"))
                }));
                (0..self.width).filter(|place| !is_index(place)).collect()
            }
            chosen => places(chosen)?,
        };
        let mut taken = vec![false; self.width];
        features.retain(|&place| {
            let is_id = Some(place) == id && !is_expected(place);
            let is_apart = [label, weight].contains(&Some(place)) || is_id || dropped.contains(&place);
            !is_apart && !std::mem::replace(&mut taken[place], true)
        });
        if let Some(expected) = &options.expected {
            features = self.expected(expected, features, &mut notes)?;
        }
        self.require_names(&features)?;
        match features.len() {
            0 => Err(FileProblem::NoFeatures),
            found if found > MAX_FEATURES => Err(FileProblem::TooManyFeatures { found, most: MAX_FEATURES }),
            _ => Ok(Selection { features, label, id, weight, notes }),
        }
    }

    /// The needed columns, in their order.
    fn expected(&self, expected: &[String], chosen: Vec<usize>, notes: &mut Vec<Note>) -> Parsed<Vec<usize>> {
        let Some(names) = self.names else {
            if chosen.len() != expected.len() {
                let (found, names) = (chosen.len(), expected.join(", "));
                return Err(FileProblem::ColumnCount { found, expected: expected.len(), names });
            }
            let text = "the rows have no column names: their columns are taken in the order of the training";
            notes.push(Note::new(text, "--columns"));
            return Ok(chosen);
        };
        let mut is_chosen = vec![false; self.width];
        chosen.iter().for_each(|&place| is_chosen[place] = true);
        let place = |name: &String| self.places.get(name.as_str()).copied().filter(|&place| is_chosen[place]);
        let needed: std::collections::HashSet<&str> = expected.iter().map(String::as_str).collect();
        let extra: Vec<String> =
            chosen.iter().map(|&k| names[k].clone()).filter(|name| !needed.contains(name.as_str())).collect();
        let missing: Vec<String> = expected.iter().filter(|name| place(name).is_none()).cloned().collect();
        if !missing.is_empty() {
            return Err(FileProblem::OtherColumns { missing, extra });
        }
        if !extra.is_empty() {
            let text = format!("columns that the training did not have are not used: {}", extra.join(", "));
            notes.push(Note::new(text, format!("--drop {}", extra.join(","))));
        }
        Ok(expected.iter().filter_map(place).collect())
    }

    /// Refuses features without a name, and two of one name.
    fn require_names(&self, features: &[usize]) -> Parsed<()> {
        let Some(names) = self.names else { return Ok(()) };
        let mut seen = HashMap::new();
        for &place in features {
            let name = names.get(place).map_or("", String::as_str);
            if name.is_empty() && self.width > 1 {
                return Err(FileProblem::NoName { column: place + 1 });
            }
            if seen.insert(name, place).is_some() {
                return Err(FileProblem::Duplicate { what: "columns", name: name.to_owned() });
            }
        }
        Ok(())
    }
}
