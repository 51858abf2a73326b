//! The engine over NCCL, on stand-ins for NCCL and for the CUDA driver, whose ranks are threads of this process.

mod failures;
mod queue;
mod queued;
mod stand_in;
mod streams;
#[path = "../../../../collectives/examples/ranks/work.rs"]
#[allow(dead_code, reason = "the example prints times as well")]
mod work;

use gradwire_collectives::{Collective, CollectiveError, Nccl, NcclId, NcclSettings, Threads};

use stand_in::{Fault, LONG, fault, id, nccl, on, settings, spread};

/// The hash of all results of each rank, of threads.
fn of_threads(ranks: u32) -> Vec<u64> {
    std::thread::scope(|scope| {
        let groups = Threads::group(ranks).expect("a group");
        let threads: Vec<_> = groups
            .into_iter()
            .map(|mut group| scope.spawn(move || work::everything(&mut group).expect("threads do not fail")))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

#[test]
fn every_operation_and_recipe_gives_what_threads_give_for_1_to_9_ranks() {
    for ranks in 1..=9 {
        let id = id();
        for rank in 0..ranks {
            fault(&id, rank, 0, Fault::Delay, ranks as i32);
        }
        let found = on(id, ranks, LONG, |mut group| {
            let hash = work::everything(&mut group).unwrap_or_else(|e| panic!("rank {}: {e}", group.rank()));
            group.finish().expect("all ranks end");
            hash
        });
        assert_eq!(found, of_threads(ranks), "{ranks} ranks");
    }
}

#[test]
fn an_id_travels_over_another_engine() {
    nccl();
    let groups = std::sync::Arc::new(std::sync::Mutex::new(Threads::group(3).expect("a group")));
    let sums = spread(3, move |_| {
        let mut other = groups.lock().expect("no panic").pop().expect("one for each");
        // Of the one device there is not one for each, and the stand-in lets them share it.
        let settings = NcclSettings { device: 7, ..settings(LONG) }.own_gpu(&mut other).expect("a device");
        assert_eq!(settings.device, 0);
        let mut group = Nccl::open_over(&mut other, &settings).expect("a group");
        assert_eq!((group.rank(), group.ranks()), (other.rank(), 3));
        let mut values = [group.rank() as f32, 1.0];
        group.all_reduce_sum(&mut values).expect("a sum");
        group.finish().expect("all ranks end");
        values
    });
    assert_eq!(sums, [[3.0, 3.0]; 3]);
}

#[test]
fn every_rank_hears_of_an_id_that_could_not_be_made() {
    let groups = std::sync::Arc::new(std::sync::Mutex::new(Threads::group(2).expect("a group")));
    let errors = spread(2, move |_| {
        let mut other = groups.lock().expect("no panic").pop().expect("one for each");
        let settings = NcclSettings { library: Some("/nonexistent/libnccl.so.2".into()), ..settings(LONG) };
        (other.rank(), Nccl::open_over(&mut other, &settings).expect_err("no library"))
    });
    for (rank, error) in errors {
        match rank {
            0 => assert!(matches!(error, CollectiveError::Unavailable { .. }), "{error}"),
            _ => assert!(error.to_string().contains("rank 0 could make no id"), "{error}"),
        }
    }
}

#[test]
fn what_is_not_installed_is_named() {
    let missing = |settings: &NcclSettings| {
        let id = NcclId::from_bytes([0; 128]);
        Nccl::open(&id, 0, 1, settings).expect_err("nothing to open")
    };
    let path = || Some("/nonexistent/lib.so".into());
    for settings in [
        NcclSettings { library: path(), ..settings(LONG) },
        NcclSettings { driver: path(), ..settings(LONG) },
        // The C library has neither's functions.
        NcclSettings { library: Some("libc.so.6".into()), ..settings(LONG) },
        NcclSettings { driver: Some("libc.so.6".into()), ..settings(LONG) },
    ] {
        let error = missing(&settings);
        let CollectiveError::Unavailable { engine: "NCCL", tried, .. } = &error else { panic!("{error}") };
        let named = [settings.library, settings.driver].into_iter().flatten().map(|path| path.display().to_string());
        assert!(named.into_iter().any(|path| *tried == [path]), "{error}");
    }
    let mut alone = Threads::group(1).expect("one").remove(0);
    let error = NcclSettings { driver: path(), ..settings(LONG) }.own_gpu(&mut alone).expect_err("no driver");
    assert!(matches!(error, CollectiveError::Unavailable { .. }), "{error}");
    let error = missing(&NcclSettings { device: 7, ..settings(LONG) });
    assert!(stand_in::has_code(&error, 101) && error.to_string().contains("cuDeviceGet"), "{error}");
}
