//! A data owner and a server: the server trains a classifier on rows that it cannot read.
//!
//! Both run in this program and talk over TLS, as they would between two machines.
//!
//! ```text
//! cargo run --release --example 06_client_and_server [-- --set full]
//! ```

use hetal::learn::Wishes;
use hetal_client::data::{Labels, Preparation, Table};
use hetal_client::rpc::{Address, Credentials, Remote};
use hetal_client::training::{TrainingOptions, TrainingRun};
use hetal_client::{Labelled, Project, TrainingData};
use hetal_server::tenants::{Fingerprint, Tenant, TenantConfig};
use std::time::Duration;
use zeroize::Zeroizing;

const TOKEN: &str = "a-token-that-only-this-example-uses";

/// Private rows of two classes, from a fixed formula.
fn rows() -> hetal_client::Result<Labelled> {
    let names: Vec<String> = (0..48).map(|i| ["ham", "spam"][i % 2].to_owned()).collect();
    let noise = |i: usize, h: usize| ((i * 31 + h * 17 + i * h) % 19) as f64 / 19.0 - 0.5;
    let value = |n: usize| (n / 4, n % 4);
    let values = (0..48 * 4).map(value).map(|(i, h)| f64::from(h % 2 == i % 2) + noise(i, h)).collect();
    Labelled::new(Table::new(4, values, Some(Labels::Texts(names))), None)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let set = std::env::args().skip_while(|argument| argument != "--set").nth(1);
    let set = set.unwrap_or_else(|| "insecure-toy11".to_owned());
    if set.starts_with("insecure-") {
        println!("{set} is a toy set: quick and INSECURE. Real data needs `-- --set full`.");
    }
    let folder = tempfile::tempdir()?;

    // The server has a folder, a certificate of its own and one tenant. It has no secret key.
    let tenant = TenantConfig {
        name: Tenant::try_from("example".to_owned())?,
        token: Some(Fingerprint::of(TOKEN.as_bytes())),
        certificate: None,
        expires: None,
    };
    let server = hetal_server::start(hetal_server::Config {
        folder: folder.path().join("server"),
        address: ([127, 0, 0, 1], 0).into(),
        tenants: vec![tenant],
        allow_insecure: set.starts_with("insecure-"),
        sets: vec![set.clone()],
        ..Default::default()
    })?;
    println!("server: listens on {}", server.address());

    // The owner has a project: a folder with the secret key and the models.
    let address = Address {
        server: format!("127.0.0.1:{}", server.address().port()),
        authorities: std::fs::read(server.authority().ok_or("the server has no certificate")?)?,
        credentials: Credentials::Token(Zeroizing::new(TOKEN.to_owned())),
        retry_timeout: Duration::from_secs(30),
    };
    let mut project = Project::open(&folder.path().join("owner"), Some(&set))?;
    let remote = Remote::connect(&address)?;
    let data = TrainingData::new(&rows()?, None, &Preparation::default())?;
    println!("owner: {} rows to train on, {} to validate", data.training.rows(), data.validation.rows());

    // Keys are made, rows are encrypted and sent, checks are judged, the model is decrypted.
    let mut options = TrainingOptions::new("example");
    options.verdict_delay = Duration::ZERO;
    options.verify = true;
    options.wishes = Wishes { batch: Some(64), rate: Some(2.0), max_epochs: Some(2), ..Wishes::default() };
    let trained = TrainingRun::open(&mut project, &remote, &data, &options, &mut |_| {})?.run(&mut |_| {})?;
    println!("owner: sent {} bytes of keys and {} bytes of encrypted rows", trained.key_bytes, trained.row_bytes);
    println!("owner: accuracy on validation rows {:.0} %", 100.0 * trained.model.training.validation_accuracy);
    let difference = trained.difference.ok_or("the plaintext reference was not computed")?;
    println!("owner: weights differ from plaintext training by {difference:.1e} of the largest");
    assert!(difference < 1e-3, "encrypted and plaintext training do not agree");
    server.stop();
    Ok(())
}
