//! The engine whose ranks are GPUs, which NCCL connects.

mod driver;
mod group;
mod host;
mod library;
mod place;
mod queue;
mod table;

use std::ffi::c_void;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use gradwire::{Collective, CollectiveError};

use self::driver::Driver;
use self::group::{Group, Parts};
use self::host::Buffers;
use self::table::{ENGINE, ID_BYTES, Table, UniqueId};
use crate::op::Op;
use crate::sum::{add, floats, share, to_bytes};

/// What an [`Nccl`] group is made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NcclSettings {
    /// The file of NCCL's library, as `/opt/nccl/lib/libnccl.so.2`. Without it, the environment's `GRADWIRE_NCCL` is
    /// taken; without that, `libnccl.so.2` and `libnccl.so`.
    pub library: Option<PathBuf>,
    /// The file of the CUDA driver's library. Without it, the environment's `GRADWIRE_CUDA` is taken; without that,
    /// `libcuda.so.1` and `libcuda.so`.
    pub driver: Option<PathBuf>,
    /// The number of this rank's GPU, as CUDA counts them in this process. NCCL takes no GPU for two ranks.
    pub device: u32,
    /// The longest time that a call waits for other ranks, the opening among them; then it fails with
    /// [`CollectiveError::Stalled`]. 5 minutes by default.
    ///
    /// It has to be longer than what ranks compute between two calls may differ by.
    pub deadline: Duration,
}

impl Default for NcclSettings {
    fn default() -> Self {
        Self { library: None, driver: None, device: 0, deadline: Duration::from_secs(300) }
    }
}

impl NcclSettings {
    /// The same settings, with a GPU of this rank's own: of the ranks on this machine, which the ranks tell each other
    /// over `ranks`, the first gets GPU 0, the second GPU 1, and so on. Every rank calls it. `ranks` may be threads of
    /// one process or processes on many machines.
    ///
    /// Where this process sees fewer GPUs than there are ranks on the machine, the device is 0. That is right where
    /// each process was given a GPU that no other sees, as by `CUDA_VISIBLE_DEVICES`. Else two ranks share a GPU, which
    /// NCCL refuses: [`Nccl::open`] says so.
    ///
    /// Machines are told apart by the identifier that Linux draws when it starts. Elsewhere, and if it cannot be
    /// read, all ranks count as of one machine.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::Unavailable`] if there is no driver; [`CollectiveError::Engine`] if it shows no GPU;
    /// the other ranks then get what `ranks` gives where a rank leaves. Else whatever `ranks` gives.
    pub fn own_gpu(self, ranks: &mut dyn Collective) -> Result<Self, CollectiveError> {
        let gpus = driver::gpus(self.driver.as_ref())?;
        Ok(Self { device: place::own(ranks, gpus)?, ..self })
    }
}

/// What names a group to be: one rank makes it, and all ranks open the group with it.
///
/// ```
/// use gradwire_collectives::NcclId;
///
/// let id = NcclId::from_bytes([7; 128]); // as they came from another rank
/// assert_eq!(id.to_bytes(), [7; 128]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NcclId([u8; ID_BYTES]);

impl NcclId {
    /// A new one, by `ncclGetUniqueId`. The process that makes it has to live until the group is open.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::Unavailable`] if NCCL is not found or is older than 2.18; [`CollectiveError::Engine`]
    /// if it finds no network interface.
    pub fn new(settings: &NcclSettings) -> Result<Self, CollectiveError> {
        let table = Table::load(settings.library.as_ref())?;
        let mut id = UniqueId([0; ID_BYTES]);
        // SAFETY: the place is one for an id.
        table.check("ncclGetUniqueId", unsafe { (table.get_unique_id)(&raw mut id) })?;
        Ok(Self(id.0))
    }

    /// The bytes, to be brought to the other ranks by any means. cudarc's `Id` has the same.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ID_BYTES] {
        self.0
    }

    /// The one with these bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; ID_BYTES]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for NcclId {
    /// Without the bytes: who knows them can join the group.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NcclId(..)")
    }
}

/// A rank of a group whose ranks are GPUs, which NCCL connects: in one process or many, on one machine or many.
///
/// NCCL and the CUDA driver are looked for at run time; see [`NcclSettings`] for where. NCCL 2.18 and newer are taken.
///
/// - **Bytes of the host** ([`Collective`]) go through device memory, on a stream of the group's own. Results have the
///   same bits as with [`Threads`](crate::Threads): a sum is added in the order of ranks, by the same code. NCCL's own
///   all-reduce is not used for it, since its order is the library's.
/// - **Device memory** ([`StreamCollective`](gradwire::StreamCollective)): operations are queued on the caller's
///   stream, without a copy and without a wait.
/// - **Deadline**: no call waits longer than [`NcclSettings::deadline`]. NCCL does not tell which rank is late.
/// - **Failure**: the group aborts its communicator and refuses every further call with the same error. Memory that
///   the device may still use is leaked. The other ranks get an error of NCCL's or come to their own deadlines.
/// - **End**: call [`Nccl::finish`] on every rank. A group that is dropped without it is aborted, as by a panic.
/// - **Threads**: a handle may move between threads. A process with several GPUs gives each a thread.
///
/// Source: NVIDIA, "NCCL User Guide", version 2.32: "Creating a communicator with options", "Fault tolerance".
///
/// # Example
///
/// The id travels over another engine:
///
/// ```no_run
/// use gradwire_collectives::{Collective, CollectiveError, Mpi, MpiSettings, Nccl, NcclSettings};
///
/// // mpirun -np 4 target/release/train, on a machine with 4 GPUs
/// let mut ranks = Mpi::open(&MpiSettings::default())?;
/// let settings = NcclSettings::default().own_gpu(&mut ranks)?;
/// let mut group = Nccl::open_over(&mut ranks, &settings)?;
/// let mut values = [group.rank() as f32];
/// group.all_reduce_sum(&mut values)?;
/// assert_eq!(values, [6.0]);
/// group.finish()?;
/// ranks.finish()?;
/// # Ok::<(), CollectiveError>(())
/// ```
pub struct Nccl {
    group: Group,
    buffers: Buffers,
}

impl Nccl {
    /// A group of `ranks`, of which this one is number `rank`. Every rank opens it with the same id.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::Unavailable`] if NCCL or the driver is not found, or NCCL is older than 2.18;
    /// [`CollectiveError::Rank`] or [`CollectiveError::Size`] if there is no such rank or group;
    /// [`CollectiveError::Stalled`] if not all ranks open the group within the deadline; [`CollectiveError::Engine`]
    /// if NCCL or the driver fails, or where two ranks have one GPU.
    pub fn open(id: &NcclId, rank: u32, ranks: u32, settings: &NcclSettings) -> Result<Self, CollectiveError> {
        let most = i32::MAX.cast_unsigned();
        if ranks == 0 || ranks > most {
            return Err(CollectiveError::Size { engine: ENGINE, got: ranks, most });
        }
        if rank >= ranks {
            return Err(CollectiveError::Rank { got: rank, ranks });
        }
        let table = Table::load(settings.library.as_ref())?;
        let driver = Driver::primary(settings.driver.as_ref(), settings.device)?;
        let stream = driver.stream()?;
        let parts = Parts { table, driver, stream, owned: true, deadline: settings.deadline };
        let group = Group::open(parts, UniqueId(id.0), rank, ranks).map_err(place::explain)?;
        Ok(Self { group, buffers: Buffers::default() })
    }

    /// A group of the ranks of another engine, over which rank 0's id travels. Every rank opens it.
    ///
    /// # Errors
    ///
    /// As [`Nccl::open`], and whatever the other engine gives. Where rank 0 can make no id, the others get
    /// [`CollectiveError::Engine`].
    pub fn open_over(ranks: &mut dyn Collective, settings: &NcclSettings) -> Result<Self, CollectiveError> {
        let mut bytes = Vec::new();
        let made = if ranks.rank() == 0 { Some(NcclId::new(settings)) } else { None };
        if let Some(Ok(id)) = &made {
            bytes.extend(id.0);
        }
        // The others wait for it, so that nothing is sent if there is no id.
        ranks.broadcast(0, &mut bytes)?;
        made.transpose()?;
        let Ok(bytes) = <[u8; ID_BYTES]>::try_from(bytes) else {
            let reason = "rank 0 could make no id; its own error says why".to_owned();
            return Err(CollectiveError::Engine { engine: ENGINE, code: None, reason });
        };
        Self::open(&NcclId(bytes), ranks.rank(), ranks.ranks(), settings)
    }

    /// A group over a communicator that another part of the program made, as `cudarc::nccl::result::comm_init_rank`
    /// does.
    ///
    /// Bytes of the host go through device memory on `stream`, after the work that is queued there. Rank and ranks are
    /// those of the communicator. [`NcclSettings::device`] has no effect.
    ///
    /// The communicator stays its maker's: [`Nccl::finish`] leaves it alone, and a failure does not abort it, which its
    /// maker has to do.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::Unavailable`] if NCCL or the driver is not found; [`CollectiveError::Engine`] if the
    /// communicator has failed, or where the stream is null and no context is current.
    ///
    /// # Safety
    ///
    /// - The caller guarantees that `comm` is an `ncclComm_t` that the library of [`NcclSettings::library`] made, and
    ///   that `stream` is a `CUstream` of its device.
    /// - The caller guarantees that both outlive the group, and that nobody calls NCCL with the communicator at the
    ///   same time as the group.
    ///
    /// # Example
    ///
    /// With cudarc, whose types are pointers to what NCCL and CUDA gave:
    ///
    /// ```no_run
    /// use gradwire_collectives::{Collective, CollectiveError, Nccl, NcclSettings};
    /// # mod cudarc {
    /// #     pub(crate) struct Stream;
    /// #     impl Stream { pub(crate) fn cu_stream(&self) -> *mut u8 { std::ptr::null_mut() } }
    /// # }
    /// # let stream = cudarc::Stream;
    /// # let comm: *mut u8 = std::ptr::null_mut();
    /// // let stream: Arc<cudarc::driver::CudaStream> = CudaContext::new(rank)?.new_stream()?;
    /// // unsafe { cudarc::nccl::result::comm_init_rank(&mut comm, ranks, id, rank)? };
    /// let settings = NcclSettings::default();
    /// // SAFETY: both belong to this rank's GPU, are used by nobody else meanwhile, and are dropped after the group.
    /// let mut group = unsafe { Nccl::from_raw(comm.cast(), stream.cu_stream().cast(), &settings)? };
    /// group.broadcast(0, &mut vec![1, 2, 3])?;
    /// # Ok::<(), CollectiveError>(())
    /// ```
    pub unsafe fn from_raw(
        comm: *mut c_void,
        stream: *mut c_void,
        settings: &NcclSettings,
    ) -> Result<Self, CollectiveError> {
        let table = Table::load(settings.library.as_ref())?;
        // SAFETY: the caller answers for the stream.
        let driver = unsafe { Driver::of_stream(settings.driver.as_ref(), stream) }?;
        let parts = Parts { table, driver, stream, owned: false, deadline: settings.deadline };
        // SAFETY: the caller answers for both.
        let group = unsafe { Group::borrow(parts, comm) }?;
        Ok(Self { group, buffers: Buffers::default() })
    }

    /// Ends the group, on every rank.
    ///
    /// # Errors
    ///
    /// As the contract of [`Collective`] says: a rank failed, or did not come to its end within the deadline.
    pub fn finish(mut self) -> Result<(), CollectiveError> {
        self.group.finish()
    }

    fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let (rank, ranks) = (self.group.rank, self.group.ranks);
        (1..ranks).map(move |far| (rank + far) % ranks)
    }

    /// Gives `to[r]` to every other rank `r`, and receives as many bytes as `from[r]` has.
    fn pass(&mut self, op: Op, to: &[&[u8]], from: &mut [Vec<u8>]) -> Result<(), CollectiveError> {
        let own = self.group.rank;
        let to: Vec<(u32, &[u8])> = self.others().map(|rank| (rank, to[rank as usize])).collect();
        let others = (0..).zip(from).filter(|(rank, _)| *rank != own);
        let mut from: Vec<(u32, &mut [u8])> = others.map(|(rank, bytes)| (rank, bytes.as_mut_slice())).collect();
        host::pass(&mut self.group, &mut self.buffers, &op, &to, &mut from)
    }
}

impl Collective for Nccl {
    fn rank(&self) -> u32 {
        self.group.rank
    }

    fn ranks(&self) -> u32 {
        self.group.ranks
    }

    fn all_gather(&mut self, mine: &[u8], all: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.group.begin()?;
        let op = Op::AllGather;
        let lengths = host::heads(&mut self.group, &mut self.buffers, op, mine.len())?;
        // NCCL gathers equal sizes, so that each rank sends as much as the longest.
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let mut padded = Vec::new();
        host::room(&mut self.group, &mut padded, longest)?;
        padded[..mine.len()].copy_from_slice(mine);
        let mut gathered = Vec::new();
        host::gather(&mut self.group, &mut self.buffers, &op, &padded, &mut gathered)?;
        all.resize_with(lengths.len(), Vec::new);
        for (rank, (into, length)) in all.iter_mut().zip(&lengths).enumerate() {
            fill(into, &gathered[rank * longest..][..*length]);
        }
        Ok(())
    }

    fn all_to_all(&mut self, to: &[&[u8]], from: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.group.begin()?;
        let (op, ranks, own) = (Op::AllToAll, self.group.ranks, self.group.rank as usize);
        if to.len() != ranks as usize {
            let error = CollectiveError::Parts { got: to.len(), ranks };
            return Err(host::refuse(&mut self.group, &mut self.buffers, op, error));
        }
        host::heads(&mut self.group, &mut self.buffers, op, 0)?;
        let lengths: Vec<u8> = to.iter().flat_map(|part| (part.len() as u64).to_le_bytes()).collect();
        let mut all = Vec::new();
        host::gather(&mut self.group, &mut self.buffers, &op, &lengths, &mut all)?;
        let (all, _) = all.as_chunks::<8>();
        from.resize_with(ranks as usize, Vec::new);
        for (rank, into) in from.iter_mut().enumerate() {
            let length = u64::from_le_bytes(all[rank * ranks as usize + own]);
            host::room(&mut self.group, into, usize::try_from(length).unwrap_or(usize::MAX))?;
        }
        self.pass(op, to, from)?;
        fill(&mut from[own], to[own]);
        Ok(())
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        self.group.begin()?;
        let op = Op::AllReduce { values: values.len() };
        host::heads(&mut self.group, &mut self.buffers, op, 4 * values.len())?;
        let (rank, ranks, len) = (self.group.rank, self.group.ranks, values.len());
        let share = |of: u32| share(len, ranks, of);
        let to: Vec<Vec<u8>> = (0..ranks).map(|to| to_bytes(&values[share(to)])).collect();
        let to: Vec<&[u8]> = to.iter().map(Vec::as_slice).collect();
        let mut parts = vec![vec![0; 4 * share(rank).len()]; ranks as usize];
        self.pass(op, &to, &mut parts)?;
        fill(&mut parts[rank as usize], to[rank as usize]);
        add(&parts, &mut values[share(rank)]);
        // The first share is the longest.
        let longest = 4 * share(0).len();
        let mut sums = to_bytes(&values[share(rank)]);
        sums.resize(longest, 0);
        let mut all = Vec::new();
        host::gather(&mut self.group, &mut self.buffers, &op, &sums, &mut all)?;
        for from in 0..ranks {
            let part = &all[from as usize * longest..];
            values[share(from)].iter_mut().zip(floats(part)).for_each(|(into, value)| *into = value);
        }
        Ok(())
    }

    fn exchange(&mut self, peer: u32, mine: &[u8], theirs: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.group.begin()?;
        let ranks = self.group.ranks;
        if peer >= ranks || peer == self.group.rank {
            return Err(self.group.fail(CollectiveError::Rank { got: peer, ranks }));
        }
        let op = Op::Exchange { peer };
        let length = host::head_of(&mut self.group, &mut self.buffers, peer, op, mine.len())?;
        host::room(&mut self.group, theirs, length)?;
        host::pass(&mut self.group, &mut self.buffers, &op, &[(peer, mine)], &mut [(peer, theirs)])
    }

    fn broadcast(&mut self, root: u32, bytes: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.group.begin()?;
        let (op, ranks) = (Op::Broadcast { root }, self.group.ranks);
        if root >= ranks {
            let error = CollectiveError::Rank { got: root, ranks };
            return Err(host::refuse(&mut self.group, &mut self.buffers, op, error));
        }
        let lengths = host::heads(&mut self.group, &mut self.buffers, op, bytes.len())?;
        if self.group.rank != root {
            host::room(&mut self.group, bytes, lengths[root as usize])?;
        }
        host::spread(&mut self.group, &mut self.buffers, &op, root, bytes)
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        self.buffers.free(&self.group);
    }
}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nccl").field("rank", &self.group.rank).field("ranks", &self.group.ranks).finish_non_exhaustive()
    }
}

/// Puts `bytes` where others were, in the same memory if there is enough of it.
fn fill(into: &mut Vec<u8>, bytes: &[u8]) {
    into.clear();
    into.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_no_group_has_is_refused_before_anything_is_loaded() {
        let (id, settings) = (NcclId([0; ID_BYTES]), NcclSettings::default());
        let open = |rank, ranks| Nccl::open(&id, rank, ranks, &settings).expect_err("no such rank");
        assert_eq!(open(2, 2), CollectiveError::Rank { got: 2, ranks: 2 });
        let most = i32::MAX.cast_unsigned();
        for got in [0, most + 1] {
            assert_eq!(open(0, got), CollectiveError::Size { engine: ENGINE, got, most });
        }
    }

    #[test]
    fn a_handle_may_move_to_another_thread() {
        fn moves<T: Send>() {}
        moves::<Nccl>();
    }

    #[test]
    fn an_id_is_not_printed() {
        assert_eq!(format!("{:?}", NcclId([65; ID_BYTES])), "NcclId(..)");
    }
}
