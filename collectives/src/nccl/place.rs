//! Which GPU a rank takes.

use gradwire::{Collective, CollectiveError};

/// Where Linux keeps the identifier that it draws when it starts: one per machine, whatever the containers on it.
const MACHINE: &str = "/proc/sys/kernel/random/boot_id";
/// `ncclInvalidUsage`.
const INVALID_USAGE: i32 = 5;

/// The number of this rank's GPU, if this process sees `gpus`.
pub(super) fn own(ranks: &mut dyn Collective, gpus: u32) -> Result<u32, CollectiveError> {
    let mut machines = Vec::new();
    ranks.all_gather(&std::fs::read(MACHINE).unwrap_or_default(), &mut machines)?;
    Ok(among(&machines, ranks.rank() as usize, gpus))
}

/// The place of a rank among those of its machine; 0 if there are more of them than GPUs.
fn among(machines: &[Vec<u8>], rank: usize, gpus: u32) -> u32 {
    let here = |of: &[Vec<u8>]| of.iter().filter(|machine| machines.get(rank) == Some(machine)).count();
    let (before, all) = (here(&machines[..rank.min(machines.len())]), here(machines));
    if all <= gpus as usize { before as u32 } else { 0 }
}

/// Adds to an error of opening a group what to do where ranks share a GPU.
pub(super) fn explain(error: CollectiveError) -> CollectiveError {
    match error {
        CollectiveError::Engine { engine, code: Some(INVALID_USAGE), reason } => {
            let reason = format!(
                "{reason}. NCCL takes no GPU for two ranks: start as many ranks on a machine as it has GPUs, and give \
                 each a device of its own (NcclSettings::own_gpu)"
            );
            CollectiveError::Engine { engine, code: Some(INVALID_USAGE), reason }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Threads;

    #[test]
    fn ranks_of_a_machine_take_its_gpus_in_turn() {
        let machines: Vec<Vec<u8>> = [b"a", b"b", b"a", b"a", b"b"].map(|name| name.to_vec()).into();
        let each = |gpus| [0, 1, 2, 3, 4].map(|rank| among(&machines, rank, gpus));
        assert_eq!(each(3), [0, 0, 1, 2, 1]);
        assert_eq!(each(8), each(3));
        // Three ranks of the first machine have too few; the second has enough.
        assert_eq!(each(2), [0, 0, 0, 0, 1]);
        assert_eq!(each(1), [0; 5]);
        assert_eq!(among(&[], 3, 4), 0);
    }

    #[test]
    fn threads_are_of_one_machine() {
        let of = |gpus| {
            let groups = Threads::group(3).expect("a group");
            std::thread::scope(|scope| {
                let each = groups.into_iter().map(|mut group| scope.spawn(move || own(&mut group, gpus)));
                let each: Vec<_> = each.collect();
                each.into_iter().map(|one| one.join().expect("no panic").expect("a gather")).collect::<Vec<_>>()
            })
        };
        assert_eq!((of(3), of(2)), (vec![0, 1, 2], vec![0; 3]));
    }

    #[test]
    fn only_a_wrong_usage_is_explained() {
        let error = |code| CollectiveError::Engine { engine: "NCCL", code, reason: "it gave a code".to_owned() };
        assert!(explain(error(Some(INVALID_USAGE))).to_string().contains("no GPU for two ranks"));
        assert_eq!(explain(error(Some(4))), error(Some(4)));
    }
}
