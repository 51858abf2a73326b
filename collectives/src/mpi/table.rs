//! The functions of MPI that this engine calls, looked up at run time, for each of the three binary interfaces.
//!
//! MPI up to version 4 is a standard of source code. OpenMPI's handles are addresses of its own symbols, MPICH's are
//! integers of 32 bits, and those of the binary interface that MPI 5.0 defines (chapter 20) are pointers with fixed
//! values. So a library tells by its symbols which of them it has, and the table has a form for each width.

use std::ffi::{c_char, c_int, c_void};
use std::fmt;

use libloading::Library;

/// A handle or a request of any library, as bits.
pub(super) type Bits = usize;

/// An error code of MPI. It is not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Code(pub(super) c_int);

/// A binary interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Abi {
    OpenMpi,
    Mpich,
    Standard,
}

/// The constants that differ between the interfaces.
#[derive(Clone, Copy, Debug)]
struct Constants {
    world: Bits,
    byte: Bits,
    errors_return: Bits,
    thread_serialized: c_int,
    /// `MPI_ERR_PROC_FAILED` or `MPIX_ERR_PROC_FAILED`, where the interface has it.
    process_failed: Option<c_int>,
}

impl Abi {
    /// The interface of a library, by symbols that the others do not have.
    ///
    /// The standard one leaves the conversions to Fortran's handles to a library of their own.
    fn of(library: &Library) -> Self {
        match (has(library, "MPI_Abi_get_version") && !has(library, "MPI_Comm_c2f"), has(library, OMPI_WORLD)) {
            (true, _) => Self::Standard,
            (false, true) => Self::OpenMpi,
            (false, false) => Self::Mpich,
        }
    }

    /// From `mpi.h` of OpenMPI 5.0, MPICH 5.0 and, for the standard one, `mpi_abi.h` of MPICH 5.0.
    fn constants(self, library: &Library) -> Result<Constants, &'static str> {
        Ok(match self {
            Self::OpenMpi => Constants {
                world: address(library, OMPI_WORLD)?,
                byte: address(library, "ompi_mpi_byte")?,
                errors_return: address(library, "ompi_mpi_errors_return")?,
                thread_serialized: 2,
                process_failed: Some(75),
            },
            Self::Mpich => Constants {
                world: 0x4400_0000,
                byte: 0x4c00_010d,
                errors_return: 0x5400_0001,
                thread_serialized: 2,
                process_failed: Some(101),
            },
            Self::Standard => Constants {
                world: 0x101,
                byte: 0x247,
                errors_return: 0x143,
                thread_serialized: 2048,
                process_failed: None,
            },
        })
    }
}

impl fmt::Display for Abi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenMpi => "OpenMPI's",
            Self::Mpich => "MPICH's",
            Self::Standard => "MPI 5's",
        })
    }
}

const OMPI_WORLD: &str = "ompi_mpi_comm_world";

/// The address of a symbol.
fn address(library: &Library, name: &'static str) -> Result<Bits, &'static str> {
    // SAFETY: the address is taken, and what lies there is not looked at.
    let found = unsafe { library.get::<*mut c_void>(name) }.map_err(|_| name)?;
    Ok((*found).addr())
}

fn has(library: &Library, name: &'static str) -> bool {
    address(library, name).is_ok()
}

/// A handle as C passes it: an `int`, or a pointer.
trait Handle: Copy + 'static {
    fn from_bits(bits: Bits) -> Self;
    fn bits(self) -> Bits;
}

impl Handle for c_int {
    fn from_bits(bits: Bits) -> Self {
        // The constants and the library's own values have 32 bits, of which the upper one is no sign.
        bits as u32 as Self
    }

    fn bits(self) -> Bits {
        self as u32 as Bits
    }
}

impl Handle for *mut c_void {
    fn from_bits(bits: Bits) -> Self {
        std::ptr::with_exposed_provenance_mut(bits)
    }

    fn bits(self) -> Bits {
        self.expose_provenance()
    }
}

/// Room for a status of any library: they have 20 to 32 bytes.
type Status = [u64; 8];

macro_rules! table {
    ($($field:ident: $symbol:literal = fn($($arg:ty),*);)*) => {
        /// The functions, for handles of one width.
        struct Table<H> {
            $(#[doc = concat!("`", $symbol, "`.")]
            $field: unsafe extern "C" fn($($arg),*) -> c_int,)*
        }

        impl<H: Handle> Table<H> {
            /// # Safety
            ///
            /// The library's functions of these names are those of MPI, with handles of this width.
            unsafe fn resolve(library: &Library) -> Result<Self, &'static str> {
                Ok(Self {$(
                    $field: {
                        // SAFETY: the signature is that of the standard, and the caller answers for the library. An
                        // `Option` of a function is a pointer that may be null, which is what a look-up gives.
                        let found = unsafe { library.get::<Option<unsafe extern "C" fn($($arg),*) -> c_int>>($symbol) };
                        found.ok().and_then(|found| *found).ok_or($symbol)?
                    },
                )*})
            }
        }
    };
}

table! {
    initialized: "MPI_Initialized" = fn(*mut c_int);
    finalized: "MPI_Finalized" = fn(*mut c_int);
    init_thread: "MPI_Init_thread" = fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int);
    query_thread: "MPI_Query_thread" = fn(*mut c_int);
    finalize: "MPI_Finalize" = fn();
    error_class: "MPI_Error_class" = fn(c_int, *mut c_int);
    error_string: "MPI_Error_string" = fn(c_int, *mut c_char, *mut c_int);
    comm_rank: "MPI_Comm_rank" = fn(H, *mut c_int);
    comm_size: "MPI_Comm_size" = fn(H, *mut c_int);
    comm_idup: "MPI_Comm_idup" = fn(H, *mut H, *mut H);
    comm_set_errhandler: "MPI_Comm_set_errhandler" = fn(H, H);
    comm_free: "MPI_Comm_free" = fn(*mut H);
    isend: "MPI_Isend" = fn(*const c_void, c_int, H, c_int, c_int, H, *mut H);
    irecv: "MPI_Irecv" = fn(*mut c_void, c_int, H, c_int, c_int, H, *mut H);
    test: "MPI_Test" = fn(*mut H, *mut c_int, *mut Status);
    get_count: "MPI_Get_count" = fn(*const Status, H, *mut c_int);
}

/// The functions of a library that the engine calls. Calls come one at a time: `world` has the lock.
///
/// # Safety
///
/// Every function but [`state`](Self::state) and [`init`](Self::init) needs MPI to be initialised and not finalised,
/// and handles that this library gave and that were not freed.
pub(super) trait Calls: Send + Sync {
    fn abi(&self) -> Abi;
    /// Whether MPI is initialised, and whether it is finalised.
    fn state(&self) -> Result<(bool, bool), Code>;
    /// Initialises MPI for one calling thread at a time, and tells whether the library allows that.
    unsafe fn init(&self) -> Result<bool, Code>;
    /// Whether a library that another part of the program initialised allows one calling thread at a time.
    unsafe fn is_threaded(&self) -> Result<bool, Code>;
    unsafe fn finalize(&self) -> Result<(), Code>;
    /// The communicator of all processes.
    fn world(&self) -> Bits;
    /// Makes errors of a communicator come back as codes.
    unsafe fn return_errors(&self, comm: Bits) -> Result<(), Code>;
    unsafe fn rank(&self, comm: Bits) -> Result<c_int, Code>;
    unsafe fn size(&self, comm: Bits) -> Result<c_int, Code>;
    /// Begins to duplicate a communicator: the request is given, and the new communicator is in `place` when it is
    /// done.
    ///
    /// # Safety
    ///
    /// `place` stays valid, and is used by nothing else, until the request is done.
    unsafe fn duplicate(&self, comm: Bits, place: *mut Bits) -> Result<Bits, Code>;
    /// The communicator that [`duplicate`](Self::duplicate) put there.
    fn duplicated(&self, place: Bits) -> Bits;
    unsafe fn free(&self, comm: Bits) -> Result<(), Code>;
    /// # Safety
    ///
    /// The bytes stay allocated and unchanged until the request is done.
    unsafe fn send(&self, bytes: *const u8, count: c_int, to: c_int, tag: c_int, comm: Bits) -> Result<Bits, Code>;
    /// # Safety
    ///
    /// The bytes stay allocated and are used by nothing else until the request is done.
    unsafe fn receive(&self, bytes: *mut u8, count: c_int, from: c_int, tag: c_int, comm: Bits) -> Result<Bits, Code>;
    /// Whether a request is done. Then it is gone, by an error as well.
    unsafe fn test(&self, request: &mut Bits) -> Result<bool, Code>;
    /// As [`test`](Self::test) for a receive: how many bytes came, once it is done.
    unsafe fn received(&self, request: &mut Bits) -> Result<Option<usize>, Code>;
    /// Whether a code says that a process has ended.
    unsafe fn is_process_failure(&self, code: Code) -> bool;
    /// The library's words for a code.
    unsafe fn words(&self, code: Code) -> String;
}

/// The functions of a library, if it is one of MPI; else the symbol that is missing.
///
/// # Safety
///
/// Symbols with names of MPI are those of MPI, in one of the three interfaces.
pub(super) unsafe fn calls(library: &Library) -> Result<Box<dyn Calls>, &'static str> {
    let abi = Abi::of(library);
    let constants = abi.constants(library)?;
    // SAFETY: the caller answers for the library, and the interface tells the width of its handles.
    unsafe {
        Ok(match abi {
            Abi::Mpich => Box::new(Bound { abi, constants, table: Table::<c_int>::resolve(library)? }),
            _ => Box::new(Bound { abi, constants, table: Table::<*mut c_void>::resolve(library)? }),
        })
    }
}

struct Bound<H> {
    abi: Abi,
    constants: Constants,
    table: Table<H>,
}

fn check(code: c_int) -> Result<(), Code> {
    if code == 0 { Ok(()) } else { Err(Code(code)) }
}

/// What a function writes through a pointer to an `int`.
fn int(call: impl FnOnce(*mut c_int) -> c_int) -> Result<c_int, Code> {
    let mut value = 0;
    check(call(&raw mut value))?;
    Ok(value)
}

impl<H: Handle> Bound<H> {
    /// # Safety
    ///
    /// As [`Calls::test`].
    unsafe fn test_into(&self, request: &mut Bits, status: &mut Status) -> Result<bool, Code> {
        let mut handle = H::from_bits(*request);
        // SAFETY: the request is the caller's, and the places are of this function and the caller.
        let done = int(|done| unsafe { (self.table.test)(&raw mut handle, done, status) });
        *request = handle.bits();
        Ok(done? != 0)
    }
}

#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every block is one call, with what the trait's contract says of it, and places of this function's own"
)]
impl<H: Handle> Calls for Bound<H> {
    fn abi(&self) -> Abi {
        self.abi
    }

    fn state(&self) -> Result<(bool, bool), Code> {
        let initialized = int(|flag| unsafe { (self.table.initialized)(flag) })?;
        let finalized = int(|flag| unsafe { (self.table.finalized)(flag) })?;
        Ok((initialized != 0, finalized != 0))
    }

    unsafe fn init(&self) -> Result<bool, Code> {
        let asked = self.constants.thread_serialized;
        let (none, no_arguments) = (std::ptr::null_mut(), std::ptr::null_mut());
        let given = int(|given| unsafe { (self.table.init_thread)(none, no_arguments, asked, given) })?;
        Ok(given >= asked)
    }

    unsafe fn is_threaded(&self) -> Result<bool, Code> {
        Ok(int(|given| unsafe { (self.table.query_thread)(given) })? >= self.constants.thread_serialized)
    }

    unsafe fn finalize(&self) -> Result<(), Code> {
        check(unsafe { (self.table.finalize)() })
    }

    fn world(&self) -> Bits {
        self.constants.world
    }

    unsafe fn return_errors(&self, comm: Bits) -> Result<(), Code> {
        let handler = H::from_bits(self.constants.errors_return);
        check(unsafe { (self.table.comm_set_errhandler)(H::from_bits(comm), handler) })
    }

    unsafe fn rank(&self, comm: Bits) -> Result<c_int, Code> {
        int(|rank| unsafe { (self.table.comm_rank)(H::from_bits(comm), rank) })
    }

    unsafe fn size(&self, comm: Bits) -> Result<c_int, Code> {
        int(|size| unsafe { (self.table.comm_size)(H::from_bits(comm), size) })
    }

    unsafe fn duplicate(&self, comm: Bits, place: *mut Bits) -> Result<Bits, Code> {
        let mut request = H::from_bits(0);
        // The place is as wide as the widest handle.
        check(unsafe { (self.table.comm_idup)(H::from_bits(comm), place.cast::<H>(), &raw mut request) })?;
        Ok(request.bits())
    }

    fn duplicated(&self, place: Bits) -> Bits {
        // A narrow handle lies in the first bytes, whatever the order of bytes is.
        let mut handle = H::from_bits(0);
        unsafe { std::ptr::copy_nonoverlapping((&raw const place).cast::<H>(), &raw mut handle, 1) };
        handle.bits()
    }

    unsafe fn free(&self, comm: Bits) -> Result<(), Code> {
        let mut comm = H::from_bits(comm);
        check(unsafe { (self.table.comm_free)(&raw mut comm) })
    }

    unsafe fn send(&self, bytes: *const u8, count: c_int, to: c_int, tag: c_int, comm: Bits) -> Result<Bits, Code> {
        let (mut request, byte) = (H::from_bits(0), H::from_bits(self.constants.byte));
        let comm = H::from_bits(comm);
        check(unsafe { (self.table.isend)(bytes.cast(), count, byte, to, tag, comm, &raw mut request) })?;
        Ok(request.bits())
    }

    unsafe fn receive(&self, bytes: *mut u8, count: c_int, from: c_int, tag: c_int, comm: Bits) -> Result<Bits, Code> {
        let (mut request, byte) = (H::from_bits(0), H::from_bits(self.constants.byte));
        let comm = H::from_bits(comm);
        check(unsafe { (self.table.irecv)(bytes.cast(), count, byte, from, tag, comm, &raw mut request) })?;
        Ok(request.bits())
    }

    unsafe fn test(&self, request: &mut Bits) -> Result<bool, Code> {
        unsafe { self.test_into(request, &mut Status::default()) }
    }

    unsafe fn received(&self, request: &mut Bits) -> Result<Option<usize>, Code> {
        let mut status = Status::default();
        if !unsafe { self.test_into(request, &mut status) }? {
            return Ok(None);
        }
        let byte = H::from_bits(self.constants.byte);
        let count = int(|count| unsafe { (self.table.get_count)(&raw const status, byte, count) })?;
        // `MPI_UNDEFINED` is below 0, and no count of bytes.
        Ok(Some(usize::try_from(count).unwrap_or(0)))
    }

    unsafe fn is_process_failure(&self, code: Code) -> bool {
        let class = int(|class| unsafe { (self.table.error_class)(code.0, class) });
        self.constants.process_failed.is_some_and(|failed| class == Ok(failed))
    }

    unsafe fn words(&self, code: Code) -> String {
        // `MPI_MAX_ERROR_STRING` is 512 at most.
        let mut text = [0u8; 1024];
        match int(|length| unsafe { (self.table.error_string)(code.0, text.as_mut_ptr().cast(), length) }) {
            Ok(length) => {
                let text = &text[..usize::try_from(length).unwrap_or(0).min(text.len())];
                String::from_utf8_lossy(text).trim_end_matches(['\0', '\n', ' ']).to_owned()
            }
            Err(_) => "the library has no words for it".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_keep_their_bits() {
        for bits in [0, 0x4400_0000, 0x8400_0000, 0xffff_ffff] {
            assert_eq!(c_int::from_bits(bits).bits(), bits);
        }
        for bits in [0, 0x101, usize::MAX] {
            assert_eq!(<*mut c_void>::from_bits(bits).bits(), bits);
        }
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn a_library_that_is_not_mpi_is_told_by_the_function_it_lacks() {
        // SAFETY: the C library is loaded already, and exports none of the names.
        let missing = unsafe { calls(&Library::new("libc.so.6").expect("the C library")) }.err();
        assert_eq!(missing, Some("MPI_Initialized"));
    }
}
