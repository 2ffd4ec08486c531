//! Reads a record from standard input and writes its page to standard output.
#![allow(clippy::unwrap_used, reason = "an example fails like a test")]

fn main() {
    let record: hetal_report::Record = serde_json::from_reader(std::io::stdin()).unwrap();
    print!("{}", hetal_report::page(&record));
}
