//! MPI in this process: its library, which is opened once, and its beginning and end.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use gradwire::CollectiveError;
use libloading::Library;

use super::table::{Calls, Code, calls};

/// The engine's name in errors.
pub(super) const ENGINE: &str = "MPI";
/// Names the library, where `MpiSettings` does not.
pub(super) const VARIABLE: &str = "GRADWIRE_MPI";

/// By whom the process was started, and with how many others: variables that a launcher sets.
const LAUNCHERS: [(&str, &str); 2] = [("OMPI_COMM_WORLD_SIZE", "OpenMPI"), ("PMI_SIZE", "MPICH")];

#[cfg(target_os = "macos")]
const OPEN_MPI: &[&str] = &["libmpi.40.dylib"];
#[cfg(target_os = "macos")]
const OTHERS: &[&str] = &["libmpi.12.dylib", "libmpich.12.dylib", "libmpi_abi.1.dylib", "libmpi_abi.0.dylib"];
#[cfg(target_os = "macos")]
const ANY: &[&str] = &["libmpi.dylib"];
#[cfg(not(target_os = "macos"))]
const OPEN_MPI: &[&str] = &["libmpi.so.40"];
#[cfg(not(target_os = "macos"))]
const OTHERS: &[&str] = &["libmpi.so.12", "libmpich.so.12", "libmpi_abi.so.1", "libmpi_abi.so.0"];
#[cfg(not(target_os = "macos"))]
const ANY: &[&str] = &["libmpi.so"];

/// MPI's functions, and the lock under which they are called: few libraries are built for many threads at once.
pub(super) struct World {
    calls: Box<dyn Calls>,
    life: Mutex<Life>,
    /// The name of the library that was opened.
    name: String,
}

/// Where this process is between MPI's beginning and its end.
#[derive(Default)]
pub(super) struct Life {
    begun: bool,
    /// Whether this crate initialised MPI, and so has to finalise it.
    ours: bool,
    /// Groups that have neither ended nor failed.
    pub(super) groups: usize,
    /// Whether a group failed or was dropped, so that messages of it may be under way for ever.
    pub(super) broken: bool,
}

impl World {
    /// MPI of this process, initialised. The first call opens a library and names it; later calls get the same one.
    pub(super) fn get(library: Option<&Path>) -> Result<&'static Self, CollectiveError> {
        static WORLD: OnceLock<Result<World, CollectiveError>> = OnceLock::new();
        let world = WORLD.get_or_init(|| Self::open(&wanted(library))).as_ref().map_err(Clone::clone)?;
        world.begin()?;
        Ok(world)
    }

    /// A world of other calls than a library's, which need no beginning.
    #[cfg(test)]
    pub(super) fn of(calls: Box<dyn Calls>) -> &'static Self {
        Box::leak(Box::new(Self { calls, life: Mutex::default(), name: "a test".to_owned() }))
    }

    fn open(wanted: &[PathBuf]) -> Result<Self, CollectiveError> {
        let mut reasons = Vec::new();
        for path in wanted {
            let name = path.display().to_string();
            // SAFETY: these names belong to MPI libraries, which are made to be loaded; who names another one answers
            // for it.
            let library = match unsafe { open(path) } {
                Ok(library) => library,
                Err(error) => {
                    let words =
                        std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
                    reasons.push(if words.starts_with(&name) { words } else { format!("{name}: {words}") });
                    continue;
                }
            };
            // SAFETY: the names of its functions are those of the standard.
            match unsafe { calls(&library) } {
                Ok(calls) => {
                    // MPI has threads and handlers of its own, so that it is never closed.
                    std::mem::forget(library);
                    return Ok(Self { calls, life: Mutex::default(), name });
                }
                Err(symbol) => reasons.push(format!("{name} has no {symbol}: it is no MPI library of version 3 or up")),
            }
        }
        let reason = format!("{}; install OpenMPI or MPICH, or name its library in {VARIABLE}", reasons.join("; "));
        let tried = wanted.iter().map(|path| path.display().to_string()).collect();
        Err(CollectiveError::Unavailable { engine: ENGINE, tried, reason })
    }

    /// Initialises MPI, where neither this crate nor another part of the program has.
    fn begin(&self) -> Result<(), CollectiveError> {
        let mut life = self.lock();
        let (initialized, finalized) = self.calls.state().map_err(|code| self.engine("MPI_Initialized", code))?;
        if finalized {
            return Err(self.unavailable("MPI was finalised in this process, and the standard allows no second start"));
        }
        if life.begun {
            return Ok(());
        }
        let threaded = if initialized {
            // SAFETY: MPI is initialised and not finalised.
            unsafe { self.calls.is_threaded() }.map_err(|code| self.engine("MPI_Query_thread", code))?
        } else {
            // SAFETY: MPI is not initialised, and the lock lets nobody else of this crate do it.
            let threaded = unsafe { self.calls.init() }.map_err(|code| self.engine("MPI_Init_thread", code))?;
            life.ours = true;
            // SAFETY: MPI is initialised, and the communicator is the library's own.
            unsafe { self.calls.return_errors(self.calls.world()) }
                .map_err(|code| self.engine("MPI_Comm_set_errhandler", code))?;
            threaded
        };
        if !threaded {
            return Err(self.unavailable("it gives no thread level of MPI_THREAD_SERIALIZED"));
        }
        life.begun = true;
        Ok(())
    }

    /// The calls, for as long as nobody else makes one.
    pub(super) fn calls(&self) -> (&dyn Calls, MutexGuard<'_, Life>) {
        (&*self.calls, self.lock())
    }

    /// Finalises MPI where this crate initialised it, and no group is left that needs it.
    pub(super) fn end(&self) -> Result<(), CollectiveError> {
        let life = self.lock();
        if !life.ours || life.groups > 0 || life.broken {
            return Ok(());
        }
        // SAFETY: MPI is initialised, no request of this crate is under way, and the lock lets nobody begin one.
        unsafe { self.calls.finalize() }.map_err(|code| self.engine("MPI_Finalize", code))
    }

    /// Refuses a group of another size than the launcher's: the sign that library and launcher do not belong together.
    pub(super) fn expect_ranks(&self, ranks: u32) -> Result<(), CollectiveError> {
        for (variable, launcher) in LAUNCHERS {
            let started = std::env::var(variable).ok().and_then(|value| value.parse::<u32>().ok());
            if let Some(started) = started.filter(|started| *started != ranks && ranks == 1) {
                return Err(self.unavailable(&format!(
                    "{launcher}'s mpirun started {started} ranks ({variable}), and this library, which has {} interface, \
                     sees {ranks}: it belongs to another mpirun; name the right one in {VARIABLE}",
                    self.calls.abi()
                )));
            }
        }
        Ok(())
    }

    fn unavailable(&self, reason: &str) -> CollectiveError {
        CollectiveError::Unavailable { engine: ENGINE, tried: vec![self.name.clone()], reason: reason.to_owned() }
    }

    /// An error of the library, while the lock is held.
    pub(super) fn engine(&self, function: &str, code: Code) -> CollectiveError {
        // SAFETY: the two functions that explain a code may be called at any time, by MPI 4.1, section 11.4.1.
        let words = unsafe { self.calls.words(code) };
        let reason = format!("{function} gave {}: {words}; make a new group", code.0);
        CollectiveError::Engine { engine: ENGINE, code: Some(code.0), reason }
    }

    fn lock(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens a library so that the plugins which MPI loads later find its symbols.
///
/// # Safety
///
/// As [`Library::new`].
#[cfg(unix)]
unsafe fn open(path: &Path) -> Result<Library, libloading::Error> {
    use libloading::os::unix;
    // SAFETY: as the caller says.
    unsafe { unix::Library::open(Some(path), unix::RTLD_NOW | unix::RTLD_GLOBAL) }.map(Library::from)
}

#[cfg(not(unix))]
unsafe fn open(path: &Path) -> Result<Library, libloading::Error> {
    // SAFETY: as the caller says.
    unsafe { Library::new(path) }
}

/// The libraries to try: the one that is named, or else those of the launcher that started this process before others.
fn wanted(library: Option<&Path>) -> Vec<PathBuf> {
    let variable = || std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
    let named = library.map(Path::to_path_buf).or_else(variable);
    match named {
        Some(path) => vec![path],
        None => names(std::env::var_os(LAUNCHERS[0].0), std::env::var_os(LAUNCHERS[1].0)),
    }
}

fn names(open_mpi: Option<OsString>, mpich: Option<OsString>) -> Vec<PathBuf> {
    let others_first = mpich.is_some() && open_mpi.is_none();
    let order = if others_first { [OTHERS, OPEN_MPI, ANY] } else { [OPEN_MPI, OTHERS, ANY] };
    order.concat().into_iter().map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let error = World::open(&["/nonexistent/libmpi.so".into()]).err().expect("nothing to open");
        let text = error.to_string();
        assert!(matches!(&error, CollectiveError::Unavailable { tried, .. } if tried == &["/nonexistent/libmpi.so"]));
        assert!(text.contains("No such file") && text.contains(VARIABLE), "{text}");
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn a_library_of_another_kind_is_told_by_what_it_lacks() {
        let error = World::open(&["libc.so.6".into()]).err().expect("the C library");
        assert!(error.to_string().contains("libc.so.6 has no MPI_Initialized"), "{error}");
    }

    #[test]
    fn the_launchers_library_is_tried_first() {
        let some = || Some(OsString::from("4"));
        assert_eq!(names(some(), None)[0], Path::new(OPEN_MPI[0]));
        assert_eq!(names(None, some())[0], Path::new(OTHERS[0]));
        assert_eq!(names(None, None).len(), OPEN_MPI.len() + OTHERS.len() + ANY.len());
    }
}
