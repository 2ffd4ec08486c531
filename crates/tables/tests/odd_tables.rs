//! Odd and hostile tables, each with the sentence that is said about it: an error, or a line of
//! the report.
#![allow(clippy::unwrap_used)]

use hetal_tables::{Encoding, FileFormat, Labels, Options, Report, npy, npz, parse, parse_labels};

/// What must be said.
enum Said {
    /// The table is refused, with these words.
    Refused(&'static str),
    /// The table is read, and its report has these words.
    Reported(&'static str),
    /// The table is read, and its report neither guesses nor warns, but for the few rows.
    Plainly(&'static str),
}
use Said::{Plainly, Refused, Reported};

struct Case {
    name: &'static str,
    format: FileFormat,
    bytes: Vec<u8>,
    options: Options,
    said: Said,
}

fn case(name: &'static str, text: impl AsRef<[u8]>, options: Options, said: Said) -> Case {
    Case { name, format: FileFormat::Csv, bytes: text.as_ref().to_vec(), options, said }
}

fn of(format: FileFormat, name: &'static str, text: impl AsRef<[u8]>, options: Options, said: Said) -> Case {
    Case { format, ..case(name, text, options, said) }
}

fn plain() -> Options {
    Options::default()
}

fn label(name: &str) -> Options {
    Options::labelled(name)
}

fn encoded(encoding: Encoding) -> Options {
    Options { encoding, ..label("kind") }
}

fn header(header: bool) -> Options {
    Options { header: Some(header), ..label("kind") }
}

fn utf16(text: &str) -> Vec<u8> {
    [0xFF, 0xFE].into_iter().chain(text.encode_utf16().flat_map(u16::to_le_bytes)).collect()
}

/// A table of two features and a label in `rows` rows.
fn rows(count: usize, heading: &str, row: impl Fn(usize) -> String) -> String {
    let rows: String = (0..count).map(|k| row(k) + "\n").collect();
    format!("{heading}\n{rows}")
}

fn wavy(k: usize) -> f64 {
    (k as f64 * 0.7).sin()
}

fn encodings() -> Vec<Case> {
    let latin: &[u8] = b"a,kind\n1,Mal\xe9\n2,Mal\xe8\n";
    vec![
        case(
            "Latin-1 as UTF-8",
            latin,
            label("kind"),
            Refused(
                "line 2, byte 12: 0xe9 is not valid UTF-8: give the file's --encoding (latin1, windows-1252 or utf-16)",
            ),
        ),
        case("Latin-1", latin, encoded(Encoding::Latin1), Plainly("2 classes: Malè (1), Malé (1)")),
        case(
            "Windows-1252",
            b"a,kind\n1,\x80\n2,x\n",
            encoded(Encoding::Windows1252),
            Plainly("2 classes: x (1), € (1)"),
        ),
        case(
            "Windows-1252 as Latin-1",
            b"a,kind\n1,\x80\n",
            encoded(Encoding::Latin1),
            Refused("is it windows-1252? Give --encoding windows-1252"),
        ),
        case(
            "no character of Windows-1252",
            b"a,kind\n1,\x81\n",
            encoded(Encoding::Windows1252),
            Refused("line 2, byte 9: 0x81 is not valid windows-1252"),
        ),
        case("UTF-16 as UTF-8", utf16("a,kind\n1,x\n"), label("kind"), Refused("give --encoding utf-16")),
        case("UTF-16", utf16("a,kind\n1,é\n2,😀\n"), encoded(Encoding::Utf16), Plainly("é (1)")),
        case(
            "half of a UTF-16 pair",
            utf16("a,kind\n1,x").into_iter().chain([0, 0xD8]).collect::<Vec<u8>>(),
            encoded(Encoding::Utf16),
            Refused("line 2, byte 22"),
        ),
        case(
            "UTF-16 without a mark",
            "a,kind\n1,x\n".encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>(),
            label("kind"),
            Refused("is it UTF-16 (--encoding utf-16) or binary?"),
        ),
        case("byte order mark", "\u{feff}a,kind\n1,x\n2,y\n", label("kind"), Plainly("2 rows, 1 columns: a\n")),
        case(
            "a picture",
            b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
            plain(),
            Refused("line 1, byte 0: 0x89 is not valid UTF-8"),
        ),
    ]
}

fn delimiters() -> Vec<Case> {
    let comma = Options { decimal_comma: true, ..label("kind") };
    vec![
        case(
            "semicolons",
            "a;b;kind\n1;2;x\n3;4;y\n",
            label("kind"),
            Reported("guessed: fields are separated by semicolons (--delimiter ,)"),
        ),
        case(
            "tabs in .csv",
            "a\tb\tkind\n1\t2\tx\n3\t4\ty\n",
            label("kind"),
            Reported("guessed: fields are separated by tabs (--delimiter ,)"),
        ),
        of(
            FileFormat::Tsv,
            "tabs in .tsv",
            "a\tb\tkind\n1\t2\tx,y\n3\t4\ty\n",
            label("kind"),
            Plainly("2 classes: x,y (1), y (1)"),
        ),
        case("vertical bars", "a|b|kind\n1|2|x\n3|4|y\n", label("kind"), Reported("separated by vertical bars")),
        case(
            "another delimiter",
            "a:kind\n1:x\n2:y\n",
            Options { delimiter: Some(b':'), ..label("kind") },
            Plainly("2 rows, 1 columns: a"),
        ),
        case(
            "a delimiter that is not there",
            "a,kind\n1,x\n",
            Options { delimiter: Some(b';'), ..label("kind") },
            Refused("column kind not found; the file contains: a,kind"),
        ),
        case(
            "decimal commas",
            "a;kind\n1,5;x\n2,5;y\n",
            label("kind"),
            Refused("row 1, column a: \"1,5\" has a comma: give --decimal , if that is a decimal comma"),
        ),
        case(
            "decimal commas, asked for",
            "a;b;kind\n1,5;2;x\n2,5;3;y\n",
            comma.clone(),
            Reported("spread of columns: 0.500 (a) to 0.500 (b)"),
        ),
        case(
            "marks of thousands",
            "a;kind\n1.234,5;x\n2.345,5;y\n",
            comma.clone(),
            Refused("column a is text (\"1.234,5\" in row 1)"),
        ),
        case(
            "points beside decimal commas",
            "a;kind\n1,5;x\n1.234;y\n",
            comma,
            Refused("row 2, column a: \"1.234\" has a point, and --decimal , was given"),
        ),
        case("a comma in quotation marks", "a,kind\n1,\"x, or y\"\n2,z\n", label("kind"), Plainly("x, or y (1)")),
    ]
}

fn quotes() -> Vec<Case> {
    let long = format!("a,kind\n1,\"x\n{}", "2,y\n".repeat(400));
    vec![
        case(
            "a quotation mark is missing",
            long,
            label("kind"),
            Refused("row 1, column 2: the field has more than 1024 bytes; is a quotation mark missing?"),
        ),
        case("a line feed in quotation marks", "a,kind\n1,\"x\ny\"\n2,z\n", label("kind"), Plainly("2 classes")),
        case(
            "quoted numbers",
            "\"a\",\"kind\"\n\"1.5\",\"x\"\n\"2.5\",\"y\"\n",
            label("kind"),
            Plainly("spread of columns: 0.500"),
        ),
        case(
            "a row too short",
            "a,b,kind\n1,2,x\n3,y\n",
            label("kind"),
            Refused("row 2 has 2 columns, and the first line has 3: is a quotation mark or a delimiter missing?"),
        ),
        case(
            "names of rows from R",
            "a,kind\n1,1.5,x\n2,2.5,y\n",
            label("kind"),
            Refused("save with row.names = FALSE"),
        ),
        case(
            "a comma at the end of lines",
            "a,kind,\n1,x,\n2,y,\n",
            label("kind"),
            Refused("column 3 has no name: name it, or leave it out with --drop 3"),
        ),
        case("Windows line ends", "a,kind\r\n1,x\r\n2,y\r\n", label("kind"), Plainly("2 classes: x (1), y (1)")),
        case(
            "spaces around fields",
            " a , kind \n 1 , x \n 2 , y \n",
            label("kind"),
            Plainly("2 classes: x (1), y (1)"),
        ),
        case("empty lines", "a,kind\n\n1,x\n\n2,y\n\n", label("kind"), Plainly("2 rows, 1 columns: a")),
        case("no bytes", "", plain(), Refused("the file has no rows: check that it is the right one")),
        case(
            "a heading only",
            "a,b,kind\n",
            label("kind"),
            Refused("the file has no rows: check that it is the right one"),
        ),
    ]
}

fn headings() -> Vec<Case> {
    let years = "2019,2020,2021,target\n1,2,3,x\n4,5,6,y\n7,8,9,x\n";
    vec![
        case("years beside a word, by name", years, label("target"), Plainly("3 rows, 3 columns: 2019, 2020, 2021")),
        case(
            "a label named by a year",
            "2019,2020\n1,x\n2,y\n3,x\n",
            label("2020"),
            Plainly("3 rows, 1 columns: 2019"),
        ),
        case(
            "years beside a word, by number",
            years,
            label("4"),
            Reported(
                "guessed: the first line (2019, 2020, 2021, target) is taken as the names of the columns, although some are numbers (--header no)",
            ),
        ),
        case(
            "years beside a word above numbers",
            "2019,2020,mean\n1,2,3\n4,5,6\n",
            plain(),
            Reported("(2019, 2020, mean) is taken as the names of the columns"),
        ),
        case(
            "a first row that counts",
            "0,1,2,3\n0.5,0.6,0.7,0.8\n",
            plain(),
            Reported(
                "guessed: the first line (0, 1, 2, 3) is taken as a row, although it could name the columns (--header yes)",
            ),
        ),
        case(
            "names that count, asked for",
            "0,1,kind\n0.5,0.6,1\n0.1,0.2,0\n",
            header(true),
            Plainly("2 rows, 2 columns: 0, 1"),
        ),
        case("no names", "0.5,0.6,x\n0.7,0.8,y\n", label("3"), Plainly("2 rows, 2 columns\n")),
        case(
            "names, denied",
            "a,kind\n1,x\n2,y\n",
            Options { header: Some(false), ..label("2") },
            Refused("row 1, column 1: \"a\" is not a number, and 2 other fields of the column are"),
        ),
        case(
            "labels that occur once",
            "5,1,cat\n3,2,dog\n4,1,cow\n",
            label("3"),
            Reported("(5, 1, cat) is taken as a row"),
        ),
        case(
            "a damaged number in the first row",
            "5.1,<0.1,0.2\n4.9,0.3,0.2\n5.0,0.4,0.2\n",
            plain(),
            Refused("row 1, column 2: \"<0.1\" is not a number, and 2 other"),
        ),
        case(
            "two columns of one name",
            "a,a,kind\n1,2,x\n3,4,y\n",
            label("kind"),
            Refused("two columns are named a: rename one of them"),
        ),
        case(
            "two label columns of one name",
            "a,kind,kind\n1,x,y\n",
            label("kind"),
            Refused("two columns are named kind"),
        ),
        case(
            "one of two columns is left out",
            "a,a,kind\n1,2,x\n3,4,y\n",
            Options { drop: vec!["2".into()], ..label("kind") },
            Plainly("2 rows, 1 columns: a"),
        ),
        case(
            "the index of pandas",
            ",a,kind\n0,1,x\n1,2,y\n",
            label("kind"),
            Refused(
                "column 1 has no name: name it, or leave it out with --drop 1, or save without the index (pandas: index=False)",
            ),
        ),
        case(
            "the index of pandas is left out",
            ",a,kind\n0,1,x\n1,2,y\n",
            Options { drop: vec!["1".into()], ..label("kind") },
            Plainly("2 rows, 1 columns: a"),
        ),
    ]
}

fn types() -> Vec<Case> {
    vec![
        case(
            "truth values",
            "a,b,kind\n1,True,x\n2,False,y\n",
            label("kind"),
            Plainly("True and False are read as 1 and 0: b"),
        ),
        case(
            "truth values among numbers",
            "a,kind\n1,x\nTrue,y\n",
            label("kind"),
            Refused("row 2, column a: \"True\" among numbers: write 1 and 0, or True and False"),
        ),
        case(
            "yes and no",
            "a,kind\nyes,x\nno,y\n",
            label("kind"),
            Refused("column a is text (\"yes\" in row 1): leave out text with --drop a"),
        ),
        case(
            "a column of text",
            "a,city,kind\n1,Paris,x\n2,Rome,y\n",
            label("kind"),
            Refused(
                "column city is text (\"Paris\" in row 1): leave out text with --drop city, or write it as numbers (`hetal extract` makes features of texts)",
            ),
        ),
        case("two columns of text", "city,name,a,kind\nP,Q,1,x\nR,S,2,y\n", label("kind"), Refused("--drop city,name")),
        case(
            "the label column is not named",
            "a,kind\n1,x\n2,y\n",
            plain(),
            Refused("If it is the class of each row: --label-column kind"),
        ),
        case(
            "dates",
            "when,a,kind\n2021-01-05,1,x\n2021-02-05,2,y\n",
            label("kind"),
            Refused("column when has dates (\"2021-01-05\" in row 1): leave it out with --drop when"),
        ),
        case(
            "dates of Europe",
            "when,kind\n31.12.1999,x\n1.1.2000,y\n",
            label("kind"),
            Refused("column when has dates"),
        ),
        case(
            "missing values",
            "age,pay,kind\n1,,x\nNaN,2,y\n3,4,x\n",
            label("kind"),
            Refused(
                "2 values are missing: row 1, column pay; row 2, column age: train with --impute median, remove these rows, or leave the columns out with --drop age,pay",
            ),
        ),
        case(
            "missing values, allowed",
            "age,kind\n1,x\nNA,y\n",
            Options { keep_missing: true, ..label("kind") },
            Reported("warning: 1 value is missing: row 2, column age (--impute, --drop age)"),
        ),
        case(
            "many missing values",
            rows(20, "a,b,kind", |k| format!("{k},?,x{}", k % 2)),
            label("kind"),
            Refused("20 values are missing: row 1, column b;"),
        ),
        case("null", "a,kind\nnull,x\n1,y\n", label("kind"), Refused("1 value is missing: row 1, column a")),
        case("infinite", "a,kind\n1,x\ninf,y\n", label("kind"), Refused("row 2, column a: inf is not a finite number")),
        case(
            "1e30",
            "a,kind\n1,x\n1e30,y\n",
            label("kind"),
            Refused("row 2, column a: 1e30 is out of range, and values may have at most 1e12 in magnitude"),
        ),
        case(
            "a percent sign",
            "a,kind\n1,x\n12%,y\n3,x\n",
            label("kind"),
            Refused("row 2, column a: \"12%\" is not a number, and 2 other fields of the column are"),
        ),
        case(
            "a column that is not there",
            "a,kind\n1,x\n",
            Options { columns: vec!["b".into()], ..label("kind") },
            Refused("column b not found; the file contains: a, kind"),
        ),
        case(
            "nothing is left",
            "a,kind\n1,x\n2,y\n",
            Options { drop: vec!["a".into()], ..label("kind") },
            Refused("no feature columns are left"),
        ),
        case(
            "columns by name and number",
            "a,b,c,kind\n1,2,t,x\n3,4,u,y\n",
            Options { columns: vec!["2".into(), "a".into()], ..label("kind") },
            Plainly("2 rows, 2 columns: b, a"),
        ),
        case(
            "too many features",
            vec!["1"; 2049].join(","),
            plain(),
            Refused("2049 feature columns, and at most 2048 can be trained: choose some with --columns"),
        ),
    ]
}

fn classes() -> Vec<Case> {
    let hundreds = rows(400, "a,kind", |k| format!("{},c{}", wavy(k), k % 200));
    let numbers = rows(400, "a,kind", |k| format!("{},{}", wavy(k), k % 200));
    let target = rows(41, "a,price", |k| format!("{},{}", wavy(k), k as f64 + 0.5));
    vec![
        case(
            "one class",
            "a,kind\n1,x\n2,x\n",
            label("kind"),
            Refused("all rows have the class \"x\": a classifier needs rows of two classes or more"),
        ),
        case(
            "two rows",
            "a,kind\n1,x\n2,y\n",
            label("kind"),
            Reported("warning: only 2 rows: the accuracy on a few validation rows says little (--validation)"),
        ),
        case(
            "200 classes",
            hundreds,
            label("kind"),
            Refused("column kind holds 200 different classes, and at most 128 can be trained"),
        ),
        case(
            "200 whole numbers",
            numbers,
            label("kind"),
            Refused("If it is an identifier or a quantity, choose another column"),
        ),
        case(
            "41 fractions",
            target,
            label("price"),
            Refused(
                "column price holds fractions (0.5 in row 1; 41 different values): that is a regression target, and hetal trains classifiers",
            ),
        ),
        case(
            "0 and 0.0",
            "a,kind\n1,0\n2,0.0\n3,1\n4,1.0\n",
            label("kind"),
            Plainly("2 classes, whole numbers: 0 (2), 1 (2)"),
        ),
        case(
            "codes with zeros",
            "a,kind\n1,007\n2,7\n",
            label("kind"),
            Reported("are taken as names, because 007 begins with a zero"),
        ),
        case(
            "truth values as labels",
            "a,kind\n1,True\n2,false\n3,TRUE\n",
            label("kind"),
            Plainly("2 classes, truth values: False (1), True (2)"),
        ),
        case(
            "numbers and names as labels",
            "a,kind\n1,1\n2,x\n",
            label("kind"),
            Reported("are taken as names, because 1 are numbers and others are not"),
        ),
        case(
            "a class named NA",
            "a,kind\n1,NA\n2,x\n",
            label("kind"),
            Reported("\"NA\" in column kind is taken as the name of a class, not as a missing label"),
        ),
        case(
            "labels that are not there",
            "a,kind\n1,x\n2,\n3,\n",
            label("kind"),
            Refused("row 2, column kind: the label is missing (as in 2 rows)"),
        ),
        case(
            "two label columns",
            "a,k,l\n1,x,y\n",
            label("k,l"),
            Refused("k,l holds 2 labels a row, and a row has one class"),
        ),
        case(
            "classes with few rows",
            rows(60, "a,kind", |k| format!("{},{}", wavy(k), k / 55)),
            label("kind"),
            Reported("warning: classes with few rows: 1 (5) (--validation)"),
        ),
    ]
}

fn suspicious() -> Vec<Case> {
    let ids = rows(60, "customer_id,a,kind", |k| format!("{},{},{}", 1000 + (k * 37) % 60, wavy(k), k % 2));
    let index = rows(60, "n,a,kind", |k| format!("{},{},{}", 10 * k, wavy(k), k % 2));
    let constant = rows(60, "a,b,kind", |k| format!("{},7,{}", wavy(k), k % 2));
    let scales = rows(60, "a,pay,kind", |k| format!("{},{},{}", wavy(k), 9000.5 * wavy(k + 3), k % 2));
    let sound = rows(60, "a,b,kind", |k| format!("{},{},{}", wavy(k), wavy(2 * k), k % 2));
    vec![
        case(
            "shuffled identifiers",
            ids,
            label("kind"),
            Reported(
                "warning: column customer_id looks like identifiers of rows, which mislead a classifier (--drop customer_id)",
            ),
        ),
        case("an index", index, label("kind"), Reported("warning: column n looks like identifiers")),
        case(
            "a constant column",
            constant,
            label("kind"),
            Reported("warning: column b has in every row the same value, which tells nothing (--drop b)"),
        ),
        case("other scales", scales, label("kind"), Reported("(pay)\n")),
        case(
            "nothing odd",
            sound,
            label("kind"),
            Plainly("60 rows, 2 columns: a, b\n2 classes, whole numbers: 0 (30), 1 (30)\n"),
        ),
    ]
}

fn lines_and_arrays() -> Vec<Case> {
    use FileFormat::{JsonLines, Npy, Npz};
    let array = |shape: &[usize], values: &[f64]| npy::write_doubles(shape, values);
    let objects = b"\x93NUMPY\x01\x00\x3c\x00{'descr': '|O', 'fortran_order': False, 'shape': (3,), }    \n";
    let one_hot = npz::write(&[("x", array(&[2, 1], &[1.0, 2.0])), ("y", array(&[2, 2], &[0.0, 1.0, 1.0, 0.0]))]);
    let truth = npy::write_booleans(&[2, 1], &[true, false]);
    vec![
        of(
            JsonLines,
            "JSON lines",
            "{\"a\": 1, \"kind\": \"x\"}\n{\"kind\": \"y\", \"a\": 2.5}\n",
            label("kind"),
            Plainly("2 rows, 1 columns: a"),
        ),
        of(
            JsonLines,
            "JSON lines of arrays",
            "[1, 2, \"x\"]\n[3, 4, \"y\"]\n",
            label("3"),
            Plainly("2 rows, 2 columns\n"),
        ),
        of(JsonLines, "a key twice", "{\"a\": 1, \"a\": 2}\n", plain(), Refused("two columns are named a")),
        of(
            JsonLines,
            "a key too many",
            "{\"a\": 1}\n{\"a\": 1, \"b\": 2}\n",
            plain(),
            Refused("line 2: column b is not in the first line"),
        ),
        of(
            JsonLines,
            "a key too few",
            "{\"a\": 1, \"b\": 2}\n{\"a\": 1}\n",
            plain(),
            Refused("1 value is missing: row 2, column b"),
        ),
        of(
            JsonLines,
            "a list in a line",
            "{\"a\": [1, 2]}\n",
            plain(),
            Refused("column a holds a list or an object: write a column for each of its values"),
        ),
        of(JsonLines, "NaN in JSON", "{\"a\": NaN}\n", plain(), Refused("(NaN is not JSON: write null)")),
        of(
            JsonLines,
            "labels in lists",
            "{\"a\": 1, \"kind\": [\"x\", \"y\"]}\n",
            label("kind"),
            Refused("column kind holds a list"),
        ),
        of(
            Npy,
            "NaN in an array",
            array(&[2, 2], &[1.0, f64::NAN, 3.0, 4.0]),
            plain(),
            Refused("1 value is missing: row 1, column 2"),
        ),
        of(
            Npy,
            "Python objects",
            objects,
            plain(),
            Refused("Python objects (|O), and must contain numbers or texts of one type: save array.astype(float)"),
        ),
        of(
            Npy,
            "one dimension",
            array(&[3], &[1.0, 2.0, 3.0]),
            plain(),
            Refused("the array has 1 dimension, and must have 2 (rows and features): reshape it"),
        ),
        of(Npy, "truth values in an array", truth, plain(), Plainly("True and False are read as 1 and 0: 1")),
        of(
            Npz,
            "one-hot labels",
            one_hot,
            plain(),
            Refused(
                "y holds 2 labels a row, and a row has one class: choose one column, or of one-hot rows the place of the 1 (numpy.argmax(labels, axis=1))",
            ),
        ),
        of(
            Npy,
            "columns of an array",
            array(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
            Options { drop: vec!["1".into()], ..plain() },
            Plainly("2 rows, 2 columns\n"),
        ),
    ]
}

/// Everything that is said about a table.
fn said(case: &Case) -> Result<Report, String> {
    let table = parse(case.format, &case.bytes, &case.options).map_err(|problem| problem.to_string())?;
    table.require_trainable().map_err(|problem| problem.to_string())?;
    Ok(Report::new(&table, None))
}

#[test]
fn each_table_is_answered_by_its_sentence() {
    let cases: Vec<Case> =
        [encodings(), delimiters(), quotes(), headings(), types(), classes(), suspicious(), lines_and_arrays()]
            .into_iter()
            .flatten()
            .collect();
    assert!(cases.len() >= 60, "{}", cases.len());
    let mut wrong = Vec::new();
    for case in &cases {
        let said = said(case);
        let right = match (&case.said, &said) {
            (Refused(words), Err(sentence)) => sentence.contains(words),
            (Reported(words), Ok(report)) => report.text().contains(words),
            (Plainly(words), Ok(report)) => {
                let few_rows = |warning: &&hetal_tables::Note| warning.flag != "--validation";
                report.text().contains(words)
                    && report.guesses.is_empty()
                    && !report.warnings.iter().any(|w| few_rows(&w))
            }
            _ => false,
        };
        if !right {
            wrong.push(format!("{}: {:?}", case.name, said.map(|report| report.text())));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// Two class names that differ in one letter stay two classes, whatever the encoding.
#[test]
fn classes_are_not_joined_by_decoding() {
    let bytes = b"a,kind\n1,Mal\xe9\n2,Mal\xe8\n";
    let table = parse(FileFormat::Csv, bytes, &encoded(Encoding::Latin1)).unwrap();
    assert_eq!(table.labels, Some(Labels::Texts(vec!["Malé".into(), "Malè".into()])));
}

/// A report is JSON with the options that answer its warnings.
#[test]
fn a_report_is_json() {
    let table = parse(FileFormat::Csv, b"a;b;kind\n1;7;0\n2;7;1\n", &label("kind")).unwrap();
    let value = serde_json::to_value(Report::new(&table, None)).unwrap();
    assert_eq!(value["rows"], 2);
    assert_eq!(value["label_type"], "integer");
    assert_eq!(value["classes"][1], serde_json::json!({ "class": "1", "rows": 1 }));
    assert_eq!(value["guesses"][0]["flag"], "--delimiter ,");
    assert_eq!(value["constant"][0], "b");
    assert_eq!(value["warnings"][1]["flag"], "--drop b");
}

/// Labels of a file of their own are refused like those of a column.
#[test]
fn label_files_are_answered_too() {
    let read = |text: &str, rows| parse_labels(FileFormat::Csv, text.as_bytes(), None, rows, &plain());
    let fractions = read("0.5\n1.5\n", None).unwrap_err().to_string();
    assert!(fractions.starts_with("column 1 holds fractions"), "{fractions}");
    let two = read("x,y\nz,w\n", None).unwrap_err().to_string();
    assert!(two.contains("2 columns; name one of them with FILE#NAME"), "{two}");
    let (labels, notes) = read(&rows(200, "species", |k| format!("s{}", k % 3)), Some(200)).unwrap();
    assert_eq!((labels.len(), notes[0].flag.as_str()), (200, "--header no"));
}
