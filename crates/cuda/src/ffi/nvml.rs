//! What the driver's management library (NVML) tells about a GPU: name, memory, temperature. The
//! library comes with the driver. It is loaded if it is there, and asked without a context.

use cudarc::driver::{result, sys};
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::sync::OnceLock;

/// The file that the driver installs.
const NAME: &str = "libnvidia-ml.so.1";
/// The sensor on the chip.
const CHIP: c_int = 0;
/// No chip is that hot: a higher value is none of a sensor.
const HOTTEST: c_uint = 200;
/// Longer than any name, and than any address of a PCI bus.
const TEXT: usize = 96;

/// 0 for success.
type Status = c_int;
/// A GPU, as NVML names it.
type Handle = *mut c_void;

/// What a GPU's driver tells about it just now. What it does not tell is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CardState {
    /// The model.
    pub model: Option<String>,
    /// Bytes of memory in use, by this program or others.
    pub used_bytes: Option<u64>,
    /// Bytes of memory.
    pub total_bytes: Option<u64>,
    /// The temperature of the chip in degrees Celsius.
    pub celsius: Option<u32>,
}

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Default)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// The functions of the library that are used.
struct Nvml {
    by_address: unsafe extern "C" fn(*const c_char, *mut Handle) -> Status,
    name: unsafe extern "C" fn(Handle, *mut c_char, c_uint) -> Status,
    memory: unsafe extern "C" fn(Handle, *mut Memory) -> Status,
    temperature: unsafe extern "C" fn(Handle, c_int, *mut c_uint) -> Status,
}

impl Nvml {
    /// Loads a library, which stays loaded; nothing where it is missing, too old or does not start.
    fn load(path: &Path) -> Option<Self> {
        /// # Safety
        ///
        /// `T` is the type of the function of that name.
        unsafe fn find<T: Copy>(library: &Library, name: &str) -> Option<T> {
            // SAFETY: the caller's.
            unsafe { library.get::<T>(name.as_bytes()) }.ok().map(|symbol| *symbol)
        }
        // SAFETY: loading NVIDIA's library runs its initialisers, which ask nothing of the caller.
        let library = unsafe { Library::new(path) }.ok()?;
        // SAFETY: the types are those of NVIDIA's header, unchanged since the functions are there.
        let (start, nvml) = unsafe {
            let start = find::<unsafe extern "C" fn() -> Status>(&library, "nvmlInit_v2")?;
            let nvml = Self {
                by_address: find(&library, "nvmlDeviceGetHandleByPciBusId_v2")?,
                name: find(&library, "nvmlDeviceGetName")?,
                memory: find(&library, "nvmlDeviceGetMemoryInfo")?,
                temperature: find(&library, "nvmlDeviceGetTemperature")?,
            };
            (start, nvml)
        };
        // SAFETY: it takes no arguments.
        let started = unsafe { start() } == 0;
        std::mem::forget(library);
        started.then_some(nvml)
    }

    /// The state of the GPU at an address of the PCI bus.
    fn state(&self, address: &CStr) -> CardState {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the text is alive, and the handle is valid to write.
        if unsafe { (self.by_address)(address.as_ptr(), &mut handle) } != 0 {
            return CardState::default();
        }
        let (mut text, mut memory, mut celsius) = ([0u8; TEXT], Memory::default(), 0);
        // SAFETY: the handle is the library's; all others are valid to write, the text with the
        // length that is given. What fails is not read.
        let told = unsafe {
            [
                (self.name)(handle, text.as_mut_ptr().cast(), TEXT as c_uint),
                (self.memory)(handle, &mut memory),
                (self.temperature)(handle, CHIP, &mut celsius),
            ]
        }
        .map(|status| status == 0);
        let model = CStr::from_bytes_until_nul(&text).ok().map(|text| text.to_string_lossy().into_owned());
        let has_memory = told[1] && memory.total > 0;
        CardState {
            model: model.filter(|model| told[0] && !model.is_empty()),
            used_bytes: has_memory.then_some(memory.used),
            total_bytes: has_memory.then_some(memory.total),
            celsius: (told[2] && celsius <= HOTTEST).then_some(celsius),
        }
    }
}

/// The state of a GPU, by the number that the driver counts it by.
pub fn card_state(card: usize) -> CardState {
    #[cfg(feature = "emulator")]
    if crate::emulated::card().is_some() {
        return CardState::default();
    }
    static NVML: OnceLock<Option<Nvml>> = OnceLock::new();
    let Some(nvml) = NVML.get_or_init(|| Nvml::load(Path::new(NAME))) else { return CardState::default() };
    address(card).map_or_else(CardState::default, |address| nvml.state(&address))
}

/// The address of a GPU on the PCI bus. CUDA and NVML may count GPUs in different orders.
fn address(card: usize) -> Option<std::ffi::CString> {
    super::driver::cards().ok().filter(|cards| card < *cards)?;
    let device = result::device::get(c_int::try_from(card).ok()?).ok()?;
    let mut text = [0u8; TEXT];
    // SAFETY: the device exists, and the text is valid to write with the length that is given.
    let status = unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), TEXT as c_int, device) };
    let address = CStr::from_bytes_until_nul(&text).ok()?;
    (status == sys::CUresult::CUDA_SUCCESS).then(|| address.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A library with two GPUs: one tells everything, the other has no sensor and no memory.
    const LIBRARY: &str = r#"
        #include <string.h>
        typedef struct { unsigned long long total, free, used; } Memory;
        static int gpus[2];
        int nvmlInit_v2(void) { return 0; }
        int nvmlDeviceGetHandleByPciBusId_v2(const char *address, void **gpu) {
            if (!strcmp(address, "0000:17:00.0")) { *gpu = &gpus[0]; return 0; }
            if (!strcmp(address, "0000:65:00.0")) { *gpu = &gpus[1]; return 0; }
            return 6;
        }
        int nvmlDeviceGetName(void *gpu, char *name, unsigned length) {
            if (length < 12) return 7;
            strcpy(name, gpu == &gpus[0] ? "NVIDIA Test" : "NVIDIA Other");
            return 0;
        }
        int nvmlDeviceGetMemoryInfo(void *gpu, Memory *memory) {
            if (gpu != &gpus[0]) return 3;
            memory->total = 150ull << 30; memory->free = 140ull << 30; memory->used = 10ull << 30;
            return 0;
        }
        int nvmlDeviceGetTemperature(void *gpu, int sensor, unsigned *celsius) {
            *celsius = 61;
            return gpu == &gpus[0] && sensor == 0 ? 0 : 3;
        }
    "#;

    #[test]
    fn what_the_library_does_not_tell_is_none() {
        let folder = hetal_testkit::TempDir::new();
        let (source, library) = (folder.path().join("nvml.c"), folder.path().join("libnvml.so"));
        std::fs::write(&source, LIBRARY).unwrap();
        let status = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status().unwrap();
        assert!(status.success());
        let nvml = Nvml::load(&library).unwrap();
        let all = CardState {
            model: Some("NVIDIA Test".to_owned()),
            used_bytes: Some(10 << 30),
            total_bytes: Some(150 << 30),
            celsius: Some(61),
        };
        assert_eq!(nvml.state(c"0000:17:00.0"), all);
        let other = CardState { model: Some("NVIDIA Other".to_owned()), ..CardState::default() };
        assert_eq!(nvml.state(c"0000:65:00.0"), other);
        assert_eq!(nvml.state(c"0000:99:00.0"), CardState::default());
    }

    #[test]
    fn without_a_library_nothing_is_known() {
        assert!(Nvml::load(Path::new("libnvidia-ml-that-is-not-there.so.1")).is_none());
        assert_eq!(card_state(usize::MAX), CardState::default());
    }
}
