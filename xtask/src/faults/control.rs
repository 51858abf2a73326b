//! The switch of the library that fails a call: the stand-in for `libcuda`, or the Vulkan layer.

use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::path::Path;

use libloading::Library;

/// How a call fails, as the library numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// There is no memory; the device goes on.
    Memory,
    /// The device is lost, where the call may tell of that.
    Lost,
}

impl Mode {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Lost => "lost",
        }
    }
}

/// The library, of which the driver's loader uses the same copy.
pub(super) struct Control {
    library: Library,
    /// What [`Control::arm`] is to ask for.
    next: Cell<(u64, Mode)>,
}

impl Control {
    pub(super) fn open(library: &Path) -> Result<Self, String> {
        // SAFETY: the library is one of this repository's two, and neither runs anything when it is loaded.
        let library = unsafe { Library::new(library) }.map_err(|e| format!("{}: {e}", library.display()))?;
        let control = Self { library, next: Cell::new((0, Mode::Memory)) };
        // All of them are there, or it is the wrong library.
        let names = [
            c"gradwire_faults_arm",
            c"gradwire_faults_calls",
            c"gradwire_faults_may_lose",
            c"gradwire_faults_hit",
            c"gradwire_faults_revive",
        ];
        for name in names {
            // SAFETY: only whether there is such a symbol is asked.
            let found = unsafe { control.library.get::<unsafe extern "C" fn()>(name.to_bytes_with_nul()) };
            found.map_err(|e| e.to_string())?;
        }
        Ok(control)
    }

    /// Says which call fails, counted from the next [`Control::arm`] on; none for zero.
    pub(super) fn set(&self, nth: u64, mode: Mode) {
        self.next.set((nth, mode));
    }

    /// Begins to count.
    pub(super) fn arm(&self) {
        let (nth, mode) = self.next.get();
        self.armed(nth, mode);
    }

    /// Fails nothing any more.
    pub(super) fn disarm(&self) {
        self.armed(0, Mode::Memory);
    }

    fn armed(&self, nth: u64, mode: Mode) {
        // SAFETY: the symbol is there, and `faults/src/lib.rs` gives it this signature.
        unsafe {
            if let Ok(arm) = self.library.get::<unsafe extern "C" fn(u64, u32)>(b"gradwire_faults_arm\0") {
                arm(nth, mode as u32);
            }
        }
    }

    /// Calls since [`Control::arm`].
    pub(super) fn calls(&self) -> u64 {
        // SAFETY: as above.
        let calls = unsafe { self.library.get::<unsafe extern "C" fn() -> u64>(b"gradwire_faults_calls\0") };
        // SAFETY: as above.
        calls.map_or(0, |calls| unsafe { calls() })
    }

    /// Whether a call since [`Control::arm`] may tell of a lost device.
    pub(super) fn may_lose(&self, nth: u64) -> bool {
        // SAFETY: as above.
        let may = unsafe { self.library.get::<unsafe extern "C" fn(u64) -> bool>(b"gradwire_faults_may_lose\0") };
        // SAFETY: as above.
        may.is_ok_and(|may| unsafe { may(nth) })
    }

    /// The function that failed.
    pub(super) fn hit(&self) -> Option<String> {
        // SAFETY: as above.
        let hit = unsafe { self.library.get::<unsafe extern "C" fn() -> *const c_char>(b"gradwire_faults_hit\0") };
        // SAFETY: as above.
        let name = hit.map_or(std::ptr::null(), |hit| unsafe { hit() });
        // SAFETY: null, or a text that ends in NUL and is never freed.
        (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
    }

    /// A device that was lost can be opened again.
    pub(super) fn revive(&self) {
        // SAFETY: as above.
        unsafe {
            if let Ok(revive) = self.library.get::<unsafe extern "C" fn()>(b"gradwire_faults_revive\0") {
                revive();
            }
        }
    }
}
