//! The stand-ins for NCCL and for the CUDA driver, and groups over them.

use std::ffi::CString;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::mpsc;
use std::time::Duration;

use gradwire_collectives::{CollectiveError, Nccl, NcclId, NcclSettings};
use libloading::Library;

/// No group that works takes nearly as long. A test that meets it has found a call that hangs.
const PATIENCE: Duration = Duration::from_secs(120);
/// The deadline of groups in which nothing is to be late.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// The deadline of groups in which something is late.
pub(crate) const SHORT: Duration = Duration::from_millis(300);

/// What a rank does wrong: the kinds of the stand-in's `gradwire_nccl_fault`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    Hang = 1,
    Fail = 2,
    Refuse = 3,
    Lost = 4,
    Delay = 5,
}

/// A library that Cargo built beside this program.
fn beside(name: &str) -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    let path =
        program.with_file_name(format!("{}{name}{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX));
    assert!(path.exists(), "{} was not built", path.display());
    path
}

pub(crate) fn settings(deadline: Duration) -> NcclSettings {
    let (library, driver) = (beside("gradwire_nccl_stand_in"), beside("gradwire_cuda_stand_in"));
    NcclSettings { library: Some(library), driver: Some(driver), device: 0, deadline }
}

/// The stand-in for NCCL, which knows where the one for the driver is.
pub(crate) fn nccl() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        // SAFETY: it is the stand-in, whose function takes a text.
        unsafe {
            let library = Library::new(beside("gradwire_nccl_stand_in")).expect("the stand-in for NCCL");
            let path = beside("gradwire_cuda_stand_in").into_os_string().into_string().expect("a path in UTF-8");
            let path = CString::new(path).expect("a path");
            let name = library.get::<unsafe extern "C" fn(*const std::ffi::c_char)>("gradwire_nccl_driver");
            (name.expect("its function"))(path.as_ptr());
            library
        }
    })
}

/// The stand-in for the driver.
pub(crate) fn cuda() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    // SAFETY: it is the stand-in.
    LIBRARY.get_or_init(|| unsafe { Library::new(beside("gradwire_cuda_stand_in")).expect("the stand-in for CUDA") })
}

/// Makes a rank of the group with this id do something wrong at an operation, counted from 0.
pub(crate) fn fault(id: &NcclId, rank: u32, operation: u64, fault: Fault, code: i32) {
    type Arm = unsafe extern "C" fn(*const [u8; 128], u32, u64, u32, i32);
    // SAFETY: the type is that of the stand-in's function.
    unsafe {
        (nccl().get::<Arm>("gradwire_nccl_fault").expect("its function"))(
            &id.to_bytes(),
            rank,
            operation,
            fault as u32,
            code,
        )
    };
}

/// An id, for a group that is not open yet.
pub(crate) fn id() -> NcclId {
    nccl();
    NcclId::new(&settings(LONG)).expect("an id")
}

/// Runs `work` on every rank of a group with this id, and gives what each rank gives.
pub(crate) fn on<T: Send + 'static>(
    id: NcclId,
    ranks: u32,
    deadline: Duration,
    work: impl Fn(Nccl) -> T + Clone + Send + 'static,
) -> Vec<T> {
    spread(ranks, move |rank| {
        let group = Nccl::open(&id, rank, ranks, &settings(deadline)).unwrap_or_else(|e| panic!("rank {rank}: {e}"));
        work(group)
    })
}

/// Runs `work` in a thread per rank, and finds calls that hang.
pub(crate) fn spread<T: Send + 'static>(ranks: u32, work: impl Fn(u32) -> T + Clone + Send + 'static) -> Vec<T> {
    let (sender, receiver) = mpsc::channel();
    for rank in 0..ranks {
        let (sender, work) = (sender.clone(), work.clone());
        std::thread::spawn(move || sender.send((rank, work(rank))));
    }
    drop(sender);
    let mut found: Vec<Option<T>> = (0..ranks).map(|_| None).collect();
    while let Some(missing) = found.iter().position(Option::is_none) {
        match receiver.recv_timeout(PATIENCE) {
            Ok((rank, outcome)) => found[rank as usize] = Some(outcome),
            Err(mpsc::RecvTimeoutError::Disconnected) => panic!("rank {missing} panicked"),
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("rank {missing} of {ranks} hangs"),
        }
    }
    found.into_iter().flatten().collect()
}

/// Whether an error is one of NCCL's with this code.
pub(crate) fn has_code(error: &CollectiveError, wanted: i32) -> bool {
    matches!(error, CollectiveError::Engine { engine: "NCCL", code: Some(code), .. } if *code == wanted)
}
