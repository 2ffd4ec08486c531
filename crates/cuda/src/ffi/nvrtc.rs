//! The run-time compiler. It is called through the library that was found and chosen here, by name:
//! a system may hold several.

use crate::source::{Arithmetic, SOURCE, options};
use crate::{Error, Result, cache};
use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Where to look for the library before the system's own places.
const FOLDER_VARIABLE: &str = "HETAL_NVRTC";

/// What the system may know the library by.
const NAMES: [&str; 3] = ["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"];

/// A program of the compiler.
type Program = *mut c_void;
/// 0 for success.
type Status = c_int;

/// The functions of the library that are used.
struct Compiler {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status,
    count_architectures: unsafe extern "C" fn(*mut c_int) -> Status,
    architectures: unsafe extern "C" fn(*mut c_int) -> Status,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Status,
    destroy: unsafe extern "C" fn(*mut Program) -> Status,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Status,
    log: Reader,
    machine_code: Reader,
    virtual_assembly: Reader,
    error: unsafe extern "C" fn(Status) -> *const c_char,
}

/// Two functions: one that tells how many bytes there are, one that writes them.
#[derive(Clone, Copy)]
struct Reader {
    size: unsafe extern "C" fn(Program, *mut usize) -> Status,
    get: unsafe extern "C" fn(Program, *mut c_char) -> Status,
}

impl Compiler {
    /// The functions of a library, which stays loaded; nothing where one is missing: it is too old.
    fn of(library: Library) -> Option<Self> {
        /// # Safety
        ///
        /// `T` is the type of the function of that name.
        unsafe fn find<T: Copy>(library: &Library, name: &str) -> Option<T> {
            // SAFETY: the caller's.
            unsafe { library.get::<T>(name.as_bytes()) }.ok().map(|symbol| *symbol)
        }
        // SAFETY: the types are those of NVIDIA's header, unchanged since the functions are there.
        let compiler = unsafe {
            let reader =
                |size: &str, get: &str| Some(Reader { size: find(&library, size)?, get: find(&library, get)? });
            Self {
                version: find(&library, "nvrtcVersion")?,
                count_architectures: find(&library, "nvrtcGetNumSupportedArchs")?,
                architectures: find(&library, "nvrtcGetSupportedArchs")?,
                create: find(&library, "nvrtcCreateProgram")?,
                destroy: find(&library, "nvrtcDestroyProgram")?,
                compile: find(&library, "nvrtcCompileProgram")?,
                log: reader("nvrtcGetProgramLogSize", "nvrtcGetProgramLog")?,
                machine_code: reader("nvrtcGetCUBINSize", "nvrtcGetCUBIN")?,
                virtual_assembly: reader("nvrtcGetPTXSize", "nvrtcGetPTX")?,
                error: find(&library, "nvrtcGetErrorString")?,
            }
        };
        std::mem::forget(library);
        Some(compiler)
    }

    /// Words for a status that is no success.
    fn check(&self, status: Status) -> std::result::Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the library gives a string of its own for every status.
        let words = unsafe { CStr::from_ptr((self.error)(status)) };
        Err(words.to_string_lossy().into_owned())
    }
}

/// The library, found and loaded once.
fn compiler() -> Option<&'static Compiler> {
    static COMPILER: OnceLock<Option<Compiler>> = OnceLock::new();
    COMPILER.get_or_init(load).as_ref()
}

/// Whether the library was found and loaded.
pub(crate) fn is_present() -> bool {
    compiler().is_some()
}

/// The first library that has all that is needed: in the user's folder, then in the system's.
fn load() -> Option<Compiler> {
    let folder = std::env::var_os(FOLDER_VARIABLE).filter(|v| !v.is_empty()).map(PathBuf::from);
    let files = folder.as_deref().map(libraries_in).unwrap_or_default();
    // Where candle brings the library, it is linked to the program and known by its name already.
    let places = files.into_iter().chain(NAMES.map(PathBuf::from));
    // SAFETY: loading NVIDIA's compiler runs its initialisers, which ask nothing of the caller.
    places.filter_map(|place| unsafe { Library::new(place) }.ok()).find_map(Compiler::of)
}

/// The compilers in a folder. The second library that each asks for by name is loaded from there
/// too.
fn libraries_in(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("libnvrtc-builtins.so") {
            // SAFETY: as in `load`.
            if let Ok(library) = unsafe { Library::new(entry.path()) } {
                std::mem::forget(library);
            }
        } else if name.starts_with("libnvrtc.so") {
            found.push(entry.path());
        }
    }
    found.sort();
    found
}

/// The library's version; call after [`is_present`] said yes.
pub(crate) fn version() -> (i32, i32) {
    let (mut major, mut minor): (c_int, c_int) = (0, 0);
    if let Some(compiler) = compiler() {
        // SAFETY: both are valid to write. An error leaves zeros.
        unsafe { (compiler.version)(&mut major, &mut minor) };
    }
    (major, minor)
}

/// What to compile for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompileTarget {
    /// The compute capability.
    pub(crate) architecture: u32,
    /// Whether it is the GPU's own: else virtual assembly, which the driver translates.
    is_native: bool,
}

impl CompileTarget {
    /// The GPU's own architecture if it is known, else the newest virtual one before it, if there
    /// is one.
    fn among(known: &[u32], capability: u32) -> Option<Self> {
        let architecture = known.iter().copied().filter(|&arch| arch <= capability).max()?;
        Some(Self { architecture, is_native: architecture == capability })
    }

    fn name(&self) -> String {
        format!("{}_{}", if self.is_native { "sm" } else { "compute" }, self.architecture)
    }
}

/// What this compiler makes for a GPU of compute capability `capability` (90 for 9.0).
pub(crate) fn target(capability: u32) -> Result<CompileTarget> {
    let mut known: Vec<c_int> = Vec::new();
    if let Some(compiler) = compiler() {
        let mut count: c_int = 0;
        // SAFETY: the count is valid to write, and the list has as many entries.
        unsafe {
            (compiler.count_architectures)(&mut count);
            known = vec![0; usize::try_from(count).unwrap_or(0)];
            (compiler.architectures)(known.as_mut_ptr());
        }
    }
    let known: Vec<u32> = known.into_iter().filter_map(|arch| u32::try_from(arch).ok()).collect();
    let (major, minor) = version();
    let too_old = || Error::CardTooOld { compiler: format!("{major}.{minor}"), target: format!("sm_{capability}") };
    CompileTarget::among(&known, capability).ok_or_else(too_old)
}

/// Compiles the kernels for a GPU of compute capability `capability`: machine code of its
/// architecture, or virtual assembly where this compiler does not know it.
pub(crate) fn compile(capability: u32, log_n: u32, arithmetic: Arithmetic) -> Result<Vec<u8>> {
    let target = target(capability)?;
    let failure = |log: String| Error::Compile { target: target.name(), log };
    let compiler = compiler().ok_or_else(|| failure("no compiler".to_owned()))?;
    let mut all = options(log_n, arithmetic);
    all.push(format!("--gpu-architecture={}", target.name()));
    let no_text = |e: std::ffi::NulError| failure(e.to_string());
    let all: Vec<CString> =
        all.into_iter().map(CString::new).collect::<std::result::Result<_, _>>().map_err(no_text)?;
    let source = CString::new(SOURCE).map_err(no_text)?;
    let job = Job::new(compiler, &source).map_err(failure)?;
    job.compile(&all).map_err(failure)?;
    job.read(if target.is_native { compiler.machine_code } else { compiler.virtual_assembly }).map_err(failure)
}

/// The identity of what [`compile`] gives, for the cache.
pub(crate) fn cache_key(
    capability: u32,
    log_n: u32,
    arithmetic: Arithmetic,
    card: &str,
    driver: &str,
) -> Result<blake3::Hash> {
    let (target, options) = (target(capability)?.name(), options(log_n, arithmetic).join(" "));
    let (major, minor) = version();
    Ok(cache::key(&[SOURCE, &options, &target, card, driver, &format!("nvrtc {major}.{minor}")]))
}

/// One program being compiled.
struct Job<'a> {
    compiler: &'a Compiler,
    program: Program,
}

impl<'a> Job<'a> {
    fn new(compiler: &'a Compiler, source: &CStr) -> std::result::Result<Self, String> {
        let (mut program, none) = (std::ptr::null_mut(), std::ptr::null());
        // SAFETY: the program is valid to write, the strings are alive, and there are no headers.
        let status = unsafe { (compiler.create)(&mut program, source.as_ptr(), c"hetal.cu".as_ptr(), 0, none, none) };
        compiler.check(status)?;
        Ok(Self { compiler, program })
    }

    /// The error is the compiler's log.
    fn compile(&self, options: &[CString]) -> std::result::Result<(), String> {
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let count = c_int::try_from(options.len()).map_err(|e| e.to_string())?;
        // SAFETY: the program is alive, and so are as many strings.
        let status = unsafe { (self.compiler.compile)(self.program, count, options.as_ptr()) };
        self.compiler.check(status).map_err(|error| {
            let log = self.read(self.compiler.log).unwrap_or_default();
            format!("{error}: {}", String::from_utf8_lossy(&log).trim_end_matches('\0'))
        })
    }

    fn read(&self, reader: Reader) -> std::result::Result<Vec<u8>, String> {
        let mut size = 0;
        // SAFETY: the program is alive; the buffer has the size that is asked for.
        unsafe {
            self.compiler.check((reader.size)(self.program, &mut size))?;
            let mut bytes = vec![0u8; size];
            self.compiler.check((reader.get)(self.program, bytes.as_mut_ptr().cast()))?;
            Ok(bytes)
        }
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        // SAFETY: created by `new` and not destroyed before. Nothing can be done about an error.
        _ = unsafe { (self.compiler.destroy)(&mut self.program) };
    }
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
            let code = compile(capability, log_n, arithmetic).unwrap();
            assert!(code.starts_with(b"\x7fELF"));
            for kernel in crate::source::Kernel::ALL {
                let name = format!(".text.{}\0", kernel.name());
                assert!(code.windows(name.len()).any(|w| w == name.as_bytes()), "{name}");
            }
        }
    }
    #[test]
    fn code_is_for_the_card_or_for_one_before_it() {
        let known = [75, 80, 86, 90];
        assert_eq!(CompileTarget::among(&known, 90).map(|t| t.name()).as_deref(), Some("sm_90"));
        assert_eq!(CompileTarget::among(&known, 89).map(|t| t.name()).as_deref(), Some("compute_86"));
        assert_eq!(CompileTarget::among(&known, 120).map(|t| t.name()).as_deref(), Some("compute_90"));
        assert_eq!(CompileTarget::among(&known, 70), None, "a compiler too new for the card");
        let words = Error::CardTooOld { compiler: "13.0".to_owned(), target: "sm_70".to_owned() }.to_string();
        assert!(words.contains("nvidia-cuda-nvrtc-cu12"), "{words}");
    }
}
