//! The run-time compiler.

use crate::source::{Arithmetic, SOURCE, options};
use crate::{Error, Result, cache};
use cudarc::nvrtc::{result, sys};
use std::ffi::{CStr, CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Where to look for the library beside the system's own places.
const FOLDER_VARIABLE: &str = "HETAL_NVRTC";

/// Whether the library was found and loaded.
pub(crate) fn is_present() -> bool {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    *PRESENT.get_or_init(load)
}

/// Loads the library and keeps it.
fn load() -> bool {
    let folder = std::env::var_os(FOLDER_VARIABLE).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(folder) = &folder {
        keep_builtins(folder);
    }
    found(folder.as_deref())
}

/// Where the library is linked, the program would not have started without it.
#[cfg(feature = "linked")]
fn found(_: Option<&Path>) -> bool {
    true
}

/// `cudarc` asks the system for the library by name, which then gives the one already loaded.
#[cfg(not(feature = "linked"))]
fn found(folder: Option<&Path>) -> bool {
    let names = cudarc::get_lib_name_candidates("nvrtc");
    let places = folder.iter().flat_map(|folder| names.iter().map(|name| folder.join(name)));
    for place in places.chain(names.iter().map(PathBuf::from)) {
        // SAFETY: loading NVIDIA's compiler runs its initialisers, which ask nothing of the caller.
        if let Ok(library) = unsafe { libloading::Library::new(place) } {
            // One that is too old to say what it compiles for is none.
            // SAFETY: the symbols are looked up and not called.
            let has = |symbol: &&[u8]| unsafe { library.get::<unsafe extern "C" fn()>(*symbol) }.is_ok();
            let is_whole =
                [&b"nvrtcGetSupportedArchs"[..], b"nvrtcGetNumSupportedArchs", b"nvrtcGetCUBIN"].iter().all(has);
            std::mem::forget(library);
            // SAFETY: as above; the check loads the library under cudarc's names.
            return is_whole && unsafe { sys::is_culib_present() };
        }
    }
    false
}

/// Loads the compiler's second library, which it asks for by name, from the folder of the first.
fn keep_builtins(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with("libnvrtc-builtins.so") {
            // SAFETY: as in `load`.
            if let Ok(library) = unsafe { libloading::Library::new(entry.path()) } {
                std::mem::forget(library);
            }
        }
    }
}

/// Machine code of an architecture, or its virtual assembly where this compiler does not know the architecture.
pub(crate) struct Compiled(pub(crate) Vec<u8>);

/// The library's version; call after [`is_present`] said yes.
pub(crate) fn version() -> (i32, i32) {
    let (mut major, mut minor): (c_int, c_int) = (0, 0);
    // SAFETY: both are valid to write. An error leaves zeros.
    unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    (major, minor)
}

/// What to compile for.
pub(crate) struct Target {
    /// The compute capability.
    pub(crate) architecture: u32,
    /// Whether it is the card's own: else virtual assembly, which the driver translates.
    is_native: bool,
}

impl Target {
    fn name(&self) -> String {
        format!("{}_{}", if self.is_native { "sm" } else { "compute" }, self.architecture)
    }
}

/// The architecture to compile for: the card's own if known, else the newest virtual one before it.
pub(crate) fn target(capability: u32) -> Target {
    let mut count: c_int = 0;
    // SAFETY: the count is valid to write, and the list has as many entries.
    let known = unsafe {
        sys::nvrtcGetNumSupportedArchs(&mut count);
        let mut known = vec![0 as c_int; usize::try_from(count).unwrap_or(0)];
        sys::nvrtcGetSupportedArchs(known.as_mut_ptr());
        known
    };
    let known = known.into_iter().filter_map(|arch| u32::try_from(arch).ok()).filter(|&arch| arch <= capability);
    match known.max() {
        Some(architecture) if architecture != capability => Target { architecture, is_native: false },
        _ => Target { architecture: capability, is_native: true },
    }
}

/// Compiles the kernels for a card of compute capability `capability` (90 for 9.0).
pub(crate) fn compile(capability: u32, log_n: u32, arithmetic: Arithmetic) -> Result<Compiled> {
    let Target { is_native, .. } = target(capability);
    let target = target(capability).name();
    let mut all = options(log_n, arithmetic);
    all.push(format!("--gpu-architecture={target}"));
    let failure = |log: String| Error::Compile { target: target.clone(), log };
    let source = CString::new(SOURCE).map_err(|e| failure(e.to_string()))?;
    let program = Program(result::create_program(&source, Some(c"hetal.cu")).map_err(|e| failure(format!("{e:?}")))?);
    // SAFETY: the program was created above and is destroyed when `program` is dropped.
    unsafe {
        if let Err(error) = result::compile_program(program.0, &all) {
            let log = result::get_program_log(program.0).unwrap_or_default();
            return Err(failure(format!("{error:?}: {}", text(&log))));
        }
        let code = if is_native { machine_code(program.0) } else { result::get_ptx(program.0).map(bytes) };
        code.map(Compiled).map_err(|e| failure(format!("{e:?}")))
    }
}

/// The identity of what [`compile`] gives, for the cache.
pub(crate) fn cache_key(capability: u32, log_n: u32, arithmetic: Arithmetic, card: &str, driver: &str) -> blake3::Hash {
    let (target, options) = (target(capability).name(), options(log_n, arithmetic).join(" "));
    let (major, minor) = version();
    cache::key(&[SOURCE, &options, &target, card, driver, &format!("nvrtc {major}.{minor}")])
}

struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created by `create_program` and not destroyed before. Nothing can be done about an error.
        _ = unsafe { result::destroy_program(self.0) };
    }
}

/// # Safety
///
/// `program` is a live program that was compiled.
unsafe fn machine_code(program: sys::nvrtcProgram) -> std::result::Result<Vec<u8>, result::NvrtcError> {
    let mut size = 0;
    // SAFETY: the caller's; the buffer has the size that is asked for.
    unsafe {
        sys::nvrtcGetCUBINSize(program, &mut size).result()?;
        let mut code: Vec<c_char> = vec![0; size];
        sys::nvrtcGetCUBIN(program, code.as_mut_ptr()).result()?;
        Ok(bytes(code))
    }
}

fn bytes(code: Vec<c_char>) -> Vec<u8> {
    code.into_iter().map(|c| c as u8).collect()
}

fn text(log: &[c_char]) -> String {
    let log = bytes(log.to_vec());
    CStr::from_bytes_until_nul(&log).map_or_else(|_| String::new(), |s| s.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::LOG_N;

    /// Without a GPU. In CI the variable `HETAL_REQUIRE_NVRTC` makes a skip a failure.
    #[test]
    fn every_kernel_compiles() {
        if !is_present() {
            assert!(std::env::var_os("HETAL_REQUIRE_NVRTC").is_none(), "libnvrtc not found");
            println!("skipped: libnvrtc not found");
            return;
        }
        let (fp64, integer) = (Arithmetic::Fp64, Arithmetic::Integer);
        let (least, most) = (*LOG_N.start(), *LOG_N.end());
        let cases = [(90, 16, fp64), (90, least, fp64), (80, most, fp64), (89, 16, integer)];
        for (capability, log_n, arithmetic) in cases {
            let code = compile(capability, log_n, arithmetic).unwrap().0;
            assert!(code.starts_with(b"\x7fELF"));
            for kernel in crate::source::Kernel::ALL {
                let name = format!(".text.{}\0", kernel.name());
                assert!(code.windows(name.len()).any(|w| w == name.as_bytes()), "{name}");
            }
        }
    }
}
