//! Compiles `proto/hetal.proto` without an installed `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["proto/hetal.proto"], ["proto"])?;
    // `Bytes` fields pass parts of blobs on without copying them.
    tonic_prost_build::configure().bytes(".").compile_fds(files)?;
    Ok(())
}
