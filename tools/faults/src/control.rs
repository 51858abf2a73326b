//! The switch of what fails a call: the stand-in for `libcuda`, the Vulkan layer, or this program's allocator.

use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::path::Path;

use libloading::Library;

use super::allocator;

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

/// The switch.
pub(super) struct Control {
    /// The library, of which the driver's loader uses the same copy; none for the allocator.
    library: Option<Library>,
    /// What [`Control::arm`] is to ask for.
    next: Cell<(u64, Mode)>,
}

impl Control {
    pub(super) fn open(library: &Path) -> Result<Self, String> {
        // SAFETY: the library is one of this repository's two, and neither runs anything when it is loaded.
        let library = unsafe { Library::new(library) }.map_err(|e| format!("{}: {e}", library.display()))?;
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
            let found = unsafe { library.get::<unsafe extern "C" fn()>(name.to_bytes_with_nul()) };
            found.map_err(|e| e.to_string())?;
        }
        Ok(Self { library: Some(library), next: Cell::new((0, Mode::Memory)) })
    }

    /// That of the allocator.
    pub(super) fn of_allocator() -> Self {
        Self { library: None, next: Cell::new((0, Mode::Memory)) }
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

    /// Makes the one call that is tested. Of the allocator nothing counts after it; of a driver what lets go of the
    /// device counts, too.
    pub(super) fn call<T>(&self, call: impl FnOnce() -> T) -> T {
        self.arm();
        let result = call();
        self.over();
        result
    }

    /// What follows is not the library's, and the allocator counts it no more.
    pub(super) fn over(&self) {
        if self.library.is_none() {
            allocator::over();
        }
    }

    /// Fails nothing any more.
    pub(super) fn disarm(&self) {
        self.armed(0, Mode::Memory);
    }

    fn armed(&self, nth: u64, mode: Mode) {
        let Some(library) = &self.library else { return allocator::arm(nth) };
        // SAFETY: the symbol is there, and `faults/src/lib.rs` gives it this signature.
        unsafe {
            if let Ok(arm) = library.get::<unsafe extern "C" fn(u64, u32)>(b"gradwire_faults_arm\0") {
                arm(nth, mode as u32);
            }
        }
    }

    /// Calls since [`Control::arm`].
    pub(super) fn calls(&self) -> u64 {
        let Some(library) = &self.library else { return allocator::calls() };
        // SAFETY: as above.
        let calls = unsafe { library.get::<unsafe extern "C" fn() -> u64>(b"gradwire_faults_calls\0") };
        // SAFETY: as above.
        calls.map_or(0, |calls| unsafe { calls() })
    }

    /// Whether a call since [`Control::arm`] may tell of a lost device.
    pub(super) fn may_lose(&self, nth: u64) -> bool {
        let Some(library) = &self.library else { return false };
        // SAFETY: as above.
        let may = unsafe { library.get::<unsafe extern "C" fn(u64) -> bool>(b"gradwire_faults_may_lose\0") };
        // SAFETY: as above.
        may.is_ok_and(|may| unsafe { may(nth) })
    }

    /// The function that failed, or what was refused.
    pub(super) fn hit(&self) -> Option<String> {
        let Some(library) = &self.library else { return allocator::hit() };
        // SAFETY: as above.
        let hit = unsafe { library.get::<unsafe extern "C" fn() -> *const c_char>(b"gradwire_faults_hit\0") };
        // SAFETY: as above.
        let name = hit.map_or(std::ptr::null(), |hit| unsafe { hit() });
        // SAFETY: null, or a text that ends in NUL and is never freed.
        (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
    }

    /// A device that was lost can be opened again.
    pub(super) fn revive(&self) {
        let Some(library) = &self.library else { return };
        // SAFETY: as above.
        unsafe {
            if let Ok(revive) = library.get::<unsafe extern "C" fn()>(b"gradwire_faults_revive\0") {
                revive();
            }
        }
    }
}
