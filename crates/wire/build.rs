//! Compiles the messages, without a protocol buffer compiler on the machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["proto/hetal.proto"], ["proto"])?;
    // Parts of blobs are handed on without copying them.
    tonic_prost_build::configure().bytes(".").compile_fds(files)?;
    Ok(())
}
