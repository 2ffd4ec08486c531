//! Writes `src/generated/hetal.v1.rs` from `proto/hetal.proto`, without an installed `protoc`. Run
//! it after a change of the protocol: `cargo run -p hetal-wire --example generate`.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    generate(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/generated"))
}

/// Writes the module of the protocol into a folder.
pub fn generate(folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let files = protox::compile([proto.join("hetal.proto")], [proto])?;
    // `Bytes` fields pass parts of blobs on without copying them.
    tonic_prost_build::configure().bytes(".").out_dir(folder).compile_fds(files)?;
    Ok(())
}
