//! `hetal bench matmul`: operations and seconds of encrypted matrix products.

use crate::report::output;
use crate::report::progress;
use crate::report::table::{TextTable, cell};
use crate::runner::engine::EngineKind;
use crate::runner::harness::{ClearHarness, Harness, HarnessCiphertext};
use crate::runner::{Experiment, GpuOptions, Runner};
use crate::{Error, Result};
use hetal_circuits::clear::{Clear, KeyRequirements};
use hetal_circuits::{Complex64, Engine};
use hetal_ckks::Params;
use hetal_learn::Matrix;
use hetal_learn::paper::counts::{Algorithm, Counts, ProductShape, SHAPES};
use hetal_learn::paper::{BlockShape, Blocks, Branch, col_major, diag_abt, diag_atb, priv_gd, row_major};
use indicatif::ProgressBar;
use serde_json::{Value, json};
use std::time::Instant;

/// Arguments of `hetal bench matmul`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// Where products run. Operations are always counted on plain numbers.
    #[arg(long, value_enum, default_value = "clear")]
    pub engine: EngineKind,
    /// The parameter set.
    #[arg(long, default_value = "full")]
    pub set: String,
    /// A shape a,b,c instead of the paper's five, for example 512,769,4.
    #[arg(long, value_parser = parse_shape)]
    pub shape: Option<ProductShape>,
    /// Only these: DiagABT, DiagATB, ColMajor, RowMajor, PrivGD-ABT, PrivGD-ATB.
    #[arg(long = "algorithm", value_delimiter = ',', value_parser = parse_algorithm)]
    pub algorithms: Vec<&'static str>,
    /// Print an array of JSON objects.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command: prints a table after each shape, or one JSON array at the end.
pub fn run(arguments: &Arguments) -> Result<()> {
    let shapes = arguments.shape.map_or(SHAPES.to_vec(), |shape| vec![shape]);
    let wanted = |a: &Algorithm| arguments.algorithms.is_empty() || arguments.algorithms.contains(&a.name());
    let algorithms: Vec<_> = Algorithm::ALL.into_iter().filter(wanted).collect();
    let runner = Runner::new(arguments.engine, &arguments.set, GpuOptions::default())?;
    let mut all = Vec::new();
    for shape in shapes {
        let objects = measure_in(&runner, shape, &algorithms, arguments.engine, &arguments.set)?;
        if !arguments.json {
            output::print(false, &Value::Null, &table(&objects).to_string());
        }
        all.extend(objects);
    }
    if arguments.json {
        output::print(true, &Value::from(all), "");
    }
    Ok(())
}

fn parse_algorithm(text: &str) -> std::result::Result<&'static str, String> {
    let names = Algorithm::ALL.map(Algorithm::name);
    let known = names.into_iter().find(|name| name.eq_ignore_ascii_case(text));
    known.ok_or_else(|| format!("must be one of {}", names[..6].join(", ")))
}

fn parse_shape(text: &str) -> std::result::Result<ProductShape, String> {
    let numbers: Vec<usize> = text.split(',').filter_map(|n| n.trim().parse().ok()).collect();
    match numbers[..] {
        [a, b, c] if a.is_power_of_two() && b > 0 && c.is_power_of_two() && c > 1 => Ok((a, b, c)),
        _ => Err("must be three numbers a,b,c; a and c powers of two, c at least 2".to_owned()),
    }
}

/// The level of both matrices in the paper. The branch `A<B` has its `A` one level lower.
const LEVEL: usize = 12;
/// PrivGD is timed on this many columns of `B` and scaled, because all columns would take hours.
const TIMED_COLUMNS: usize = 64;

/// The number of runs of a short product. The shortest run counts: the first one also allocates
/// memory on the GPU.
const RUNS: usize = 3;
/// Products that take longer are run once.
const SHORT_SECONDS: f64 = 5.0;

/// Seconds that the paper prints (`tab:matmul_comp`); those of PrivGD are its own estimates.
///
/// Columns are in the order of [`Algorithm::ALL`]. The paper does not time the other branch of
/// DiagATB.
const PRINTED_SECONDS: [[Option<f64>; 7]; 5] = [
    [Some(0.8192), Some(0.1104), Some(0.0601), Some(10.0352), Some(0.1171), Some(0.0415), None],
    [Some(3.2768), Some(0.3203), Some(0.1211), Some(40.1408), Some(0.3167), Some(0.1239), None],
    [Some(4.9216), Some(0.7609), Some(0.1223), Some(60.2896), Some(0.7176), Some(0.3343), None],
    [Some(9.8432), Some(3.0428), Some(0.3710), Some(120.5792), Some(2.8546), Some(1.2558), None],
    [Some(19.6864), Some(12.6251), Some(1.2376), Some(241.1584), Some(11.8220), Some(4.9970), None],
];

/// Measures every algorithm on one shape. Returns one flat object for each.
pub fn measure(shape: ProductShape, kind: EngineKind, set: &str) -> Result<Vec<Value>> {
    measure_in(&Runner::new(kind, set, GpuOptions::default())?, shape, &Algorithm::ALL, kind, set)
}

/// Measures some algorithms on one shape, with one set of keys for all of them.
fn measure_in(
    runner: &Runner,
    shape: ProductShape,
    algorithms: &[Algorithm],
    kind: EngineKind,
    set: &str,
) -> Result<Vec<Value>> {
    let (a, b, c) = shape;
    let params = Params::named(set)?;
    let bar = progress::bar(2 * algorithms.len() as u64);
    let mut counted = Vec::new();
    for &algorithm in algorithms {
        bar.set_message(format!("{a} x {b} x {c}: counting {}", algorithm.name()));
        counted.push(Counted::new(Product::new(algorithm, shape, &params)?)?);
        bar.inc(1);
    }
    let timed = if kind == EngineKind::Clear {
        Vec::new()
    } else {
        bar.set_message(format!("{a} x {b} x {c}: keys"));
        runner.run(&Comparison { counted: &counted, bar: &bar })?
    };
    bar.finish_and_clear();
    let rows: Vec<_> = counted.iter().enumerate().map(|(k, counted)| Measured::new(counted, timed.get(k))).collect();
    let diagonal = |abt: bool| rows.iter().find(|r| r.algorithm == diagonal(abt)).and_then(|r| r.seconds);
    let printed = |algorithm: Algorithm| printed_seconds(algorithm, shape);
    let object = |row: &Measured| {
        let abt = row.algorithm.is_abt();
        let ratio = |x: Option<f64>, y: Option<f64>| Some(x? / y?);
        let paper = printed(row.algorithm);
        json!({
            "algorithm": row.algorithm.name(),
            "a": a,
            "b": b,
            "c": c,
            "branch": row.algorithm.branch(),
            "cmult": row.counts.cmult,
            "mult": row.counts.mult,
            "rot": row.counts.rot,
            "counts_as_printed": row.algorithm.printed(shape).map(|printed| printed == row.counts),
            "engine": kind.name(),
            "set": set,
            "seconds": row.seconds,
            "extrapolated": row.extrapolated,
            "diagonal_speedup": ratio(row.seconds, diagonal(abt)),
            "paper_seconds": paper,
            "paper_diagonal_speedup": ratio(paper, printed(self::diagonal(abt))),
            "max_error": row.max_error,
        })
    };
    Ok(rows.iter().map(object).collect())
}

/// The diagonal algorithm of the paper for one of the two products.
fn diagonal(abt: bool) -> Algorithm {
    if abt { Algorithm::DiagAbt } else { Algorithm::DiagAtb(Branch::RotateA) }
}

fn printed_seconds(algorithm: Algorithm, shape: ProductShape) -> Option<f64> {
    let row = SHAPES.iter().position(|&s| s == shape)?;
    let column = Algorithm::ALL.iter().position(|&a| a == algorithm)?;
    PRINTED_SECONDS[row][column]
}

/// The measurements of one algorithm on one shape.
struct Measured {
    algorithm: Algorithm,
    counts: Counts,
    seconds: Option<f64>,
    extrapolated: bool,
    max_error: f64,
}

impl Measured {
    fn new(counted: &Counted, timed: Option<&TimedProduct>) -> Self {
        let Counted { product, counts, .. } = counted;
        let (columns, part) = (product.columns, product.timed().columns);
        Self {
            algorithm: product.algorithm,
            counts: *counts,
            seconds: timed.map(|timed| timed.seconds * columns as f64 / part as f64),
            extrapolated: timed.is_some() && part < columns,
            max_error: timed.map_or(counted.max_error, |timed| timed.max_error),
        }
    }
}

/// A product, with its operations counted on plain numbers.
struct Counted {
    product: Product,
    counts: Counts,
    keys: KeyRequirements,
    max_error: f64,
}

impl Counted {
    fn new(product: Product) -> Result<Self> {
        let part = product.counted();
        let harness = ClearHarness::new(Clear::new(part.unit.slots(), part.top_level));
        let max_error = part.run(&harness, 1)?.max_error;
        let recorded = harness.engine().op_counts();
        let counts = Counts::from(&recorded);
        // Every entry takes the same number of operations.
        let whole = |count: u64| count / part.entries() * product.entries();
        let counts = if part.entries() == product.entries() {
            counts
        } else {
            Counts { cmult: whole(counts.cmult), mult: whole(counts.mult), rot: whole(counts.rot) }
        };
        Ok(Self { product, counts, keys: recorded.keys(), max_error })
    }
}

/// Times all products of a shape on one engine.
struct Comparison<'a> {
    counted: &'a [Counted],
    bar: &'a ProgressBar,
}

impl Experiment for Comparison<'_> {
    type Output = Vec<TimedProduct>;

    fn required_keys(&self) -> Result<KeyRequirements> {
        Ok(self.counted.iter().fold(KeyRequirements::default(), |all, counted| all.union(counted.keys.clone())))
    }

    fn run<H: Harness>(&self, harness: &H) -> Result<Vec<TimedProduct>> {
        let run = |counted: &Counted| {
            self.bar.set_message(counted.product.algorithm.name());
            let timed = counted.product.timed().run(harness, RUNS);
            self.bar.inc(1);
            timed
        };
        self.counted.iter().map(run).collect()
    }
}

/// One algorithm with its matrices.
pub struct Product {
    algorithm: Algorithm,
    rows: usize,
    /// Columns of the larger matrix.
    columns: usize,
    classes: usize,
    unit: BlockShape,
    top_level: usize,
}

/// The time and the error of a product.
pub struct TimedProduct {
    /// Seconds, without encryption and decryption.
    pub seconds: f64,
    /// The largest error of an entry.
    pub max_error: f64,
}

impl Product {
    /// The product of a shape on a parameter set.
    ///
    /// A block has as many rows as `A`, or as many as the slots allow.
    pub fn new(algorithm: Algorithm, (rows, columns, classes): ProductShape, params: &Params) -> Result<Self> {
        let block_rows = rows.min(params.slots() / classes.max(1));
        let unit = BlockShape::new(block_rows, params.slots() / block_rows)?;
        Ok(Self { algorithm, rows, columns, classes, unit, top_level: params.top_level() })
    }

    fn is_column_wise(&self) -> bool {
        matches!(self.algorithm, Algorithm::PrivGdAbt | Algorithm::PrivGdAtb)
    }

    /// The number of entries for each of which PrivGD takes the same operations.
    fn entries(&self) -> u64 {
        (self.columns * self.classes) as u64
    }

    /// The part of the product that is timed.
    fn timed(&self) -> Self {
        let columns = if self.is_column_wise() { self.columns.min(TIMED_COLUMNS) } else { self.columns };
        Self { columns, ..*self }
    }

    /// The part of the product that is counted.
    ///
    /// PrivGD has thousands of ciphertexts and is slow even on plain numbers.
    fn counted(&self) -> Self {
        if self.is_column_wise() { Self { classes: 1, ..self.timed() } } else { Self { ..*self } }
    }

    /// A fixed matrix of numbers in `[-1, 1]` that depends on the salt.
    fn matrix(rows: usize, columns: usize, salt: f64) -> Matrix {
        Matrix::from_fn(rows, columns, |i, j| (salt + 1.3 * i as f64 + 0.7 * (i * j) as f64).sin())
    }

    /// The level of `A`.
    fn level_a(&self) -> usize {
        let top = LEVEL.min(self.top_level);
        if self.algorithm == Algorithm::DiagAtb(Branch::RotateB) { top - 1 } else { top }
    }

    /// The level of `B`.
    fn level_b(&self) -> usize {
        LEVEL.min(self.top_level)
    }

    fn encrypted<H: Harness>(
        &self,
        harness: &H,
        blocks: &Packed,
        level: usize,
    ) -> Result<Blocks<HarnessCiphertext<H>>> {
        let rows = blocks.rows().iter().map(|row| harness.encrypt_all(row, level));
        Ok(Blocks::new(self.unit, rows.collect::<Result<Vec<Vec<_>>>>()?)?)
    }

    fn decrypted<H: Harness>(
        &self,
        harness: &H,
        blocks: &Blocks<HarnessCiphertext<H>>,
        rows: usize,
        columns: usize,
    ) -> Result<Matrix> {
        let values = blocks.rows().iter().map(|row| harness.decrypt_all(row));
        Ok(Blocks::new(self.unit, values.collect::<Result<Vec<Vec<_>>>>()?)?.unpack(rows, columns))
    }

    /// Multiplies matrices that are packed in blocks.
    fn blocks<H: Harness>(&self, harness: &H, runs: usize) -> Result<TimedProduct> {
        let (a, b, c, unit) = (self.rows, self.columns, self.classes, self.unit);
        let (engine, x) = (harness.engine(), Self::matrix(self.rows, b, 0.1));
        let xs = Blocks::pack(&x, unit);
        let abt = self.algorithm.is_abt();
        let small = if abt { Self::matrix(c, b, 0.2) } else { Self::matrix(a, c, 0.3) };
        let packed = match self.algorithm {
            Algorithm::DiagAbt => Blocks::pack_tiled_down(&small, c, unit)?,
            Algorithm::DiagAtb(_) => Blocks::pack_tiled_right(&small, c, unit)?,
            _ => Blocks::pack(&small, unit),
        };
        // The larger matrix is the first factor of A B^T and the second factor of A^T B.
        let (level_x, level_small) =
            if abt { (self.level_a(), self.level_b()) } else { (self.level_b(), self.level_a()) };
        let (xs, small_encrypted) =
            (self.encrypted(harness, &xs, level_x)?, self.encrypted(harness, &packed, level_small)?);
        let (product, seconds) = best_of(runs, harness, || match self.algorithm {
            Algorithm::DiagAbt => diag_abt(engine, &xs, &small_encrypted, c, 1.0),
            Algorithm::ColMajor => col_major(engine, &xs, &small_encrypted, c),
            // The levels choose the branch.
            Algorithm::DiagAtb(_) => diag_atb(engine, &small_encrypted, &xs, c, 1.0, None),
            _ => row_major(engine, &small_encrypted, &xs, c),
        })?;
        let exact = if abt { abt_exact(&x, &small) } else { atb_exact(&small, &x) };
        let values = self.decrypted(harness, &product, exact.rows(), exact.columns())?;
        Ok(TimedProduct { seconds, max_error: values.max_difference(&exact) })
    }

    /// Multiplies column by column (PrivGD by Jin et al.).
    ///
    /// Classes are handled one at a time, so that few ciphertexts are in memory.
    fn columns<H: Harness>(&self, harness: &H) -> Result<TimedProduct> {
        let x = Self::matrix(self.rows, self.columns, 0.1);
        let packed = priv_gd::pack_columns(&x, harness.engine().slots())?;
        let xs = harness.encrypt_all(&packed, self.level_b())?;
        let mut total = TimedProduct { seconds: 0.0, max_error: 0.0 };
        for class in 0..self.classes {
            let small = Self::matrix(self.classes, self.columns.max(self.rows), 0.2);
            let timed = if self.algorithm.is_abt() {
                let row = Matrix::from_fn(1, self.columns, |_, j| small[(class, j)]);
                self.abt_of_row(harness, &xs, &row, &abt_exact(&x, &row))?
            } else {
                let column = Matrix::from_fn(self.rows, 1, |i, _| small[(class, i)]);
                self.atb_of_column(harness, &xs, &column, &atb_exact(&column, &x))?
            };
            total.seconds += timed.seconds;
            total.max_error = total.max_error.max(timed.max_error);
        }
        Ok(total)
    }

    /// The product of the encrypted columns `xs` with one row, compared with `exact`.
    fn abt_of_row<H: Harness>(
        &self,
        harness: &H,
        xs: &[HarnessCiphertext<H>],
        row: &Matrix,
        exact: &Matrix,
    ) -> Result<TimedProduct> {
        let replicated = priv_gd::pack_replicated(row, harness.engine().slots());
        let replicated = replicated.iter().map(|entries| harness.encrypt_all(entries, self.level_b()));
        let replicated: Vec<_> = replicated.collect::<Result<_>>()?;
        let (product, seconds) = best_of(1, harness, || priv_gd::abt(harness.engine(), xs, &replicated))?;
        let values = harness.decrypt(&product[0])?;
        let values = Matrix::from_fn(self.rows, 1, |i, _| values[i].re);
        Ok(TimedProduct { seconds, max_error: values.max_difference(exact) })
    }

    /// The product of one column with the encrypted columns `xs`, compared with `exact`.
    fn atb_of_column<H: Harness>(
        &self,
        harness: &H,
        xs: &[HarnessCiphertext<H>],
        column: &Matrix,
        exact: &Matrix,
    ) -> Result<TimedProduct> {
        let packed = priv_gd::pack_columns(column, harness.engine().slots())?;
        let column = harness.encrypt_all(&packed, self.level_b())?;
        let (mut seconds, mut row) = (0.0, Vec::new());
        // Eight columns at a time: all of them together would take gigabytes.
        for x in xs.chunks(8) {
            let (product, taken) = best_of(1, harness, || priv_gd::atb(harness.engine(), &column, x))?;
            seconds += taken;
            row.extend(harness.decrypt_all(&product[0])?.iter().map(|entry| entry[0].re));
        }
        let values = Matrix::from_fn(1, self.columns, |_, j| row[j]);
        Ok(TimedProduct { seconds, max_error: values.max_difference(exact) })
    }
}

type Packed = Blocks<Vec<Complex64>>;

/// Runs `work` up to `runs` times. Returns its result and the seconds of the shortest run.
///
/// Work that takes longer than [`SHORT_SECONDS`] is not repeated.
fn best_of<H: Harness, T, E>(runs: usize, harness: &H, work: impl Fn() -> std::result::Result<T, E>) -> Result<(T, f64)>
where
    Error: From<E>,
{
    let (mut best, mut run) = (f64::INFINITY, 0);
    loop {
        harness.synchronize()?;
        let start = Instant::now();
        let result = work()?;
        harness.synchronize()?;
        let seconds = start.elapsed().as_secs_f64();
        best = best.min(seconds);
        run += 1;
        if run >= runs || seconds > SHORT_SECONDS {
            return Ok((result, best));
        }
    }
}

impl Product {
    /// Multiplies and compares with plain numbers. Products of blocks run up to `runs` times.
    fn run<H: Harness>(&self, harness: &H, runs: usize) -> Result<TimedProduct> {
        if self.level_a() < 4 {
            return Err(Error::TooFewLevels { needs: 4, has: self.level_a() });
        }
        if self.is_column_wise() { self.columns(harness) } else { self.blocks(harness, runs) }
    }
}

fn abt_exact(a: &Matrix, b: &Matrix) -> Matrix {
    Matrix::from_fn(a.rows(), b.rows(), |i, j| a.row(i).iter().zip(b.row(j)).map(|(x, y)| x * y).sum())
}

fn atb_exact(a: &Matrix, b: &Matrix) -> Matrix {
    Matrix::from_fn(a.columns(), b.columns(), |i, j| (0..a.rows()).map(|k| a[(k, i)] * b[(k, j)]).sum())
}

/// A report as a table.
pub fn table(objects: &[Value]) -> TextTable {
    let mut table = TextTable::new(&[
        "a, b, c",
        "algorithm",
        "CMult",
        "Mult",
        "Rot",
        "as printed",
        "seconds",
        "over Diag",
        "paper's s",
        "over Diag",
        "max error",
    ]);
    for object in objects {
        let text = |name: &str| cell(&object[name]);
        let branch = object["branch"].as_str().map_or(String::new(), |b| format!(" ({b})"));
        let star = if object["extrapolated"] == true { " *" } else { "" };
        table.push(vec![
            format!("{}, {}, {}", text("a"), text("b"), text("c")),
            text("algorithm") + &branch,
            text("cmult"),
            text("mult"),
            text("rot"),
            text("counts_as_printed"),
            text("seconds") + star,
            text("diagonal_speedup"),
            text("paper_seconds"),
            text("paper_diagonal_speedup"),
            text("max_error"),
        ]);
    }
    table
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_the_corrected_table() {
        let objects = measure(SHAPES[0], EngineKind::Clear, "full").unwrap();
        assert_eq!(objects.len(), Algorithm::ALL.len());
        for object in &objects {
            assert!(object["counts_as_printed"] == true && object["seconds"].is_null(), "{object}");
            assert!(object["max_error"].as_f64().unwrap() < 1e-10, "{object}");
        }
    }

    /// Runs every algorithm under encryption, on several blocks. PrivGD is timed on fewer columns.
    #[test]
    fn encrypted_products_are_exact_and_timed() {
        let objects = measure((32, 70, 4), EngineKind::Cpu, "insecure-toy11").unwrap();
        for object in &objects {
            assert!(object["max_error"].as_f64().unwrap() < 1e-6, "{object}");
            assert!(object["seconds"].as_f64().unwrap() > 0.0 && object["counts_as_printed"].is_null());
            let column_wise = object["algorithm"].as_str().unwrap().starts_with("PrivGD");
            assert_eq!(object["extrapolated"], column_wise, "{object}");
        }
    }

    #[test]
    fn shapes_parse_or_say_what_they_must_be() {
        assert_eq!(parse_shape("512,769,4"), Ok((512, 769, 4)));
        for text in ["", "512,769", "512,769,3", "100,10,4", "4,4,4,4"] {
            assert!(parse_shape(text).is_err(), "{text}");
        }
    }
}
