//! Operations in device memory, queued on a stream of the caller's; and a communicator of the caller's.

use std::ffi::c_void;
use std::sync::{Arc, Barrier};

use gradwire::{StreamCollective, Transfer};
use gradwire_collectives::{Collective, CollectiveError, Nccl, NcclId};

use super::stand_in::{LONG, SHORT, cuda, has_code, id, nccl, on, settings, spread};

/// A stream of the device's, and memory on it.
pub(crate) struct Memory {
    pub(crate) stream: *mut c_void,
}

/// A function of the stand-in for the driver.
macro_rules! call {
    ($name:literal, fn($($ty:ty),*), $($arg:expr),*) => {{
        // SAFETY: the type is that of `cuda.h`, and the arguments are places and memory of this file.
        let code = unsafe { (cuda().get::<unsafe extern "C" fn($($ty),*) -> i32>($name).expect($name))($($arg),*) };
        assert_eq!(code, 0, $name);
    }};
}

impl Memory {
    pub(crate) fn new() -> Self {
        let (mut context, mut stream) = (0usize, std::ptr::null_mut());
        call!("cuDevicePrimaryCtxRetain", fn(*mut usize, i32), &raw mut context, 0);
        call!("cuCtxPushCurrent_v2", fn(usize), context);
        call!("cuStreamCreate", fn(*mut *mut c_void, u32), &raw mut stream, 1);
        Self { stream }
    }

    /// Device memory with these values.
    pub(crate) fn put(&self, values: &[f32]) -> u64 {
        let mut at = 0;
        call!("cuMemAlloc_v2", fn(*mut u64, usize), &raw mut at, 4 * values.len());
        let from = values.as_ptr().cast();
        call!("cuMemcpyHtoD_v2", fn(u64, *const c_void, usize), at, from, 4 * values.len());
        at
    }

    /// The values at an address, after what is queued on the stream.
    pub(crate) fn get(&self, at: u64, count: usize) -> Vec<f32> {
        let mut values = vec![0.0f32; count];
        let (to, bytes) = (values.as_mut_ptr().cast(), 4 * count);
        call!("cuMemcpyDtoHAsync_v2", fn(*mut c_void, u64, usize, *mut c_void), to, at, bytes, self.stream);
        values
    }
}

#[test]
fn queued_operations_do_what_they_say_and_wait_for_nothing() {
    for ranks in [1, 2, 3, 5] {
        let queued = Arc::new(Barrier::new(ranks as usize));
        let found = on(id(), ranks, LONG, move |mut group| {
            let (memory, rank) = (Memory::new(), Collective::rank(&group));
            let mine = memory.put(&[rank as f32, 0.5]);
            let all = memory.put(&vec![-1.0; 2 * ranks as usize]);
            let sums = memory.put(&[-1.0; 2]);
            let told = memory.put(&[rank as f32 + 10.0]);
            let (next, last) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
            let received = memory.put(&[-1.0; 4]);
            let mut transfers = vec![Transfer { peer: next, send: mine, receive: received, bytes: 8 }];
            if last != next {
                transfers.push(Transfer { peer: last, send: mine, receive: received + 8, bytes: 8 });
            }
            transfers.retain(|transfer| transfer.peer != rank);
            // Rank 0 queues everything before any other rank begins.
            if rank != 0 {
                queued.wait();
            }
            // SAFETY: the memory is there, and the stream is the context's.
            unsafe {
                group.queue_all_gather(mine, all, 8, memory.stream).expect("queued");
                group.queue_all_reduce_sum(mine, sums, 2, memory.stream).expect("queued");
                group.queue_broadcast(ranks - 1, told, 4, memory.stream).expect("queued");
                group.queue_transfers(&transfers, memory.stream).expect("queued");
            }
            if rank == 0 {
                group.check().expect("nothing failed");
                queued.wait();
            }
            // SAFETY: as above.
            unsafe { group.wait(memory.stream).expect("done") };
            let gathered = memory.get(all, 2 * ranks as usize);
            let expected: Vec<f32> = (0..ranks).flat_map(|rank| [rank as f32, 0.5]).collect();
            assert_eq!(gathered, expected);
            assert_eq!(memory.get(sums, 2), [(0..ranks).sum::<u32>() as f32, 0.5 * ranks as f32]);
            assert_eq!(memory.get(told, 1), [ranks as f32 + 9.0]);
            let of = |rank: u32| [rank as f32, 0.5];
            let expected = match ranks {
                1 => [-1.0; 4].to_vec(),
                2 => [of(next), [-1.0; 2]].concat(),
                _ => [of(next), of(last)].concat(),
            };
            assert_eq!(memory.get(received, 4), expected);
            group.finish().expect("all ranks end");
        });
        assert_eq!(found.len(), ranks as usize);
    }
}

#[test]
fn sizes_that_differ_fail_behind_the_queue_and_poison_the_group() {
    on(id(), 2, LONG, |mut group| {
        let memory = Memory::new();
        let at = memory.put(&[0.0; 8]);
        let bytes = if Collective::rank(&group) == 0 { 4 } else { 8 };
        // SAFETY: the memory is there, and the stream is the context's.
        let error = unsafe {
            // The first operation connects the ranks, and may tell what becomes of it.
            group.queue_all_gather(at, at + 16, 8, memory.stream).expect("queued");
            group.queue_all_gather(at, at + 16, bytes, memory.stream).expect("queued");
            group.wait(memory.stream).expect_err("sizes differ")
        };
        assert!(has_code(&error, 4) && error.to_string().contains("invalid argument"), "{error}");
        assert_eq!(group.check().as_ref(), Err(&error));
        // SAFETY: as above.
        assert_eq!(unsafe { group.queue_all_reduce_sum(at, at, 1, memory.stream) }.as_ref(), Err(&error));
        assert_eq!(group.all_gather(&[], &mut Vec::new()).as_ref(), Err(&error));
    });
}

#[test]
fn a_wait_for_a_rank_that_queues_nothing_has_a_deadline() {
    on(id(), 2, SHORT, |mut group| {
        if Collective::rank(&group) == 1 {
            std::thread::sleep(3 * SHORT);
            return;
        }
        let memory = Memory::new();
        let at = memory.put(&[0.0; 8]);
        // SAFETY: the memory is there, and the stream is the context's.
        let error = unsafe {
            group.queue_broadcast(0, at, 4, memory.stream).expect("queued");
            group.wait(memory.stream).expect_err("rank 1 sleeps")
        };
        assert!(matches!(error, CollectiveError::Stalled { waited: SHORT, .. }), "{error}");
    });
}

#[test]
fn ranks_that_are_not_there_are_refused() {
    on(id(), 2, LONG, |mut group| {
        let memory = Memory::new();
        let at = memory.put(&[0.0; 2]);
        let own = Collective::rank(&group);
        let transfer = Transfer { peer: own, send: at, receive: at + 4, bytes: 4 };
        // SAFETY: the memory is there, and the stream is the context's.
        let error = unsafe { group.queue_transfers(&[transfer], memory.stream) };
        assert_eq!(error, Err(CollectiveError::Rank { got: own, ranks: 2 }));
    });
}

/// `ncclConfig_t` as far as the stand-in reads it.
#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: i32,
}

/// A communicator as another part of a program makes it.
fn raw(id: NcclId, rank: i32, ranks: i32) -> *mut c_void {
    #[repr(C)]
    struct Id([u8; 128]);
    type Init = unsafe extern "C" fn(*mut *mut c_void, i32, Id, i32, *mut Config) -> i32;
    let mut comm = std::ptr::null_mut();
    let mut config = Config { size: size_of::<Config>(), magic: 0xcafe_beef, version: 22_703, blocking: 0 };
    // SAFETY: the type is that of `nccl.h`.
    let code = unsafe {
        let init = nccl().get::<Init>("ncclCommInitRankConfig").expect("its function");
        init(&raw mut comm, ranks, Id(id.to_bytes()), rank, &raw mut config)
    };
    assert_eq!(code, 7, "it goes on by itself");
    comm
}

#[test]
fn a_communicator_and_a_stream_of_the_callers_are_taken_and_left() {
    let id = id();
    let sums = spread(3, move |rank| {
        let memory = Memory::new();
        let comm = raw(id, rank.cast_signed(), 3);
        // SAFETY: both are there until the group has ended.
        let mut group = unsafe { Nccl::from_raw(comm, memory.stream, &settings(LONG)) }.expect("a group");
        assert_eq!((Collective::rank(&group), Collective::ranks(&group)), (rank, 3));
        let mut values = [rank as f32];
        group.all_reduce_sum(&mut values).expect("a sum");
        group.finish().expect("nothing to end");
        // The communicator is as good as before.
        // SAFETY: as above.
        let mut group = unsafe { Nccl::from_raw(comm, memory.stream, &settings(LONG)) }.expect("a group");
        let mut bytes = if rank == 2 { vec![1, 2, 3] } else { Vec::new() };
        group.broadcast(2, &mut bytes).expect("a broadcast");
        drop(group);
        // SAFETY: the communicator is this rank's to end.
        let code = unsafe {
            (nccl().get::<unsafe extern "C" fn(*mut c_void) -> i32>("ncclCommDestroy").expect("its function"))(comm)
        };
        assert_eq!((code, bytes), (0, vec![1, 2, 3]));
        values
    });
    assert_eq!(sums, [[3.0]; 3]);
}
