//! Groups whose messages bear a key: the results of the engine, and every message that was meddled with is refused.

use gradwire::{Collective, CollectiveError, Compressor, Device};
use gradwire_collectives::{Key, Keyed, Threads};

use crate::training::{bits, gradient, of, together};

fn key() -> Key {
    Key::new(*b"thirty-two bytes of all ranks...")
}

fn keyed(group: Threads) -> Keyed<Threads> {
    Keyed::new(group, &key()).expect("all have the key")
}

/// What every operation gives on a rank: lengths differ, and some are 0.
fn everything(group: &mut impl Collective) -> Result<(Vec<Vec<u8>>, Vec<u32>), CollectiveError> {
    let (rank, ranks) = (group.rank(), group.ranks());
    let (mut bytes, mut sums) = (Vec::new(), Vec::new());
    for call in 0..3 {
        let mut all = Vec::new();
        group.all_gather(&vec![rank as u8; (call * rank) as usize], &mut all)?;
        bytes.append(&mut all);
        let parts: Vec<Vec<u8>> = (0..ranks).map(|to| vec![(10 * rank + to) as u8; (to * call) as usize]).collect();
        group.all_to_all(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut all)?;
        bytes.append(&mut all);
        // Order counts: 1 is lost in 1e8.
        let mut values: Vec<f32> = (0..5 * call).map(|i| [1e8, 1.0, -1e8][((rank + i) % 3) as usize]).collect();
        group.all_reduce_sum(&mut values)?;
        sums.extend(bits(&values));
        // The last of an odd number takes no part.
        if rank ^ 1 < ranks {
            let mut theirs = Vec::new();
            group.exchange(rank ^ 1, &vec![rank as u8; call as usize], &mut theirs)?;
            bytes.push(theirs);
        }
        let mut told = vec![rank as u8; 3];
        group.broadcast(call % ranks, &mut told)?;
        bytes.push(told);
    }
    Ok((bytes, sums))
}

#[test]
fn every_operation_gives_what_the_engine_gives() {
    for ranks in 1..=5 {
        let plain = together(Threads::group(ranks).expect("few"), |_, mut group| everything(&mut group));
        let with_key = together(Threads::group(ranks).expect("few"), |_, group| everything(&mut keyed(group)));
        assert_eq!(with_key, plain, "{ranks} ranks");
        assert!(plain.iter().all(Result::is_ok), "{plain:?}");
    }
}

#[test]
fn a_training_has_the_bits_of_one_without_a_key_and_sends_32_bytes_more_per_message() {
    for text in ["qsgd:bits=4,bucket=64+ef", "topk:0.01+ef+gtopk", "none", "qsgd:bits=8,bucket=64+ef+twophase"] {
        let steps = |group: &mut dyn Collective, rank| {
            let mut compressor: Compressor = of(text);
            let step = |step| {
                let mut x = gradient(compressor.elements(), rank, step);
                compressor.exchange(&Device::cpu(), &mut *group, &mut x).expect(text);
                bits(&x)
            };
            (0..3).map(step).collect::<Vec<_>>()
        };
        let plain = together(Threads::group(3).expect("few"), |rank, mut group| steps(&mut group, rank));
        let with_key = together(Threads::group(3).expect("few"), |rank, group| steps(&mut keyed(group), rank));
        assert!(with_key == plain, "{text}");
    }
    let sent = together(Threads::group(3).expect("few"), |_, group| {
        let sent = group.sent();
        let mut group = keyed(group);
        let before = sent.total();
        group.all_gather(&[0; 100], &mut Vec::new()).expect("it goes");
        (before, sent.total() - before)
    });
    // A nonce of 32 bytes and its code, to two ranks; then 100 bytes and their code.
    assert_eq!(sent, [(2 * (32 + 32), 2 * (100 + 32)); 3]);
}

/// A group that lets somebody change what this rank receives, by the number of the call.
struct Meddled<F> {
    group: Threads,
    calls: u32,
    meddle: F,
}

impl<F: FnMut(u32, &mut Vec<Vec<u8>>)> Meddled<F> {
    fn meddle(&mut self, all: &mut Vec<Vec<u8>>) {
        (self.meddle)(self.calls, all);
        self.calls += 1;
    }
}

impl<F: FnMut(u32, &mut Vec<Vec<u8>>)> Collective for Meddled<F> {
    fn rank(&self) -> u32 {
        self.group.rank()
    }

    fn ranks(&self) -> u32 {
        self.group.ranks()
    }

    fn all_gather(&mut self, mine: &[u8], all: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.group.all_gather(mine, all)?;
        self.meddle(all);
        Ok(())
    }

    fn all_to_all(&mut self, to: &[&[u8]], from: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.group.all_to_all(to, from)?;
        self.meddle(from);
        Ok(())
    }

    fn all_reduce_sum(&mut self, _: &mut [f32]) -> Result<(), CollectiveError> {
        panic!("a sum of the engine's own bears no key")
    }

    fn exchange(&mut self, peer: u32, mine: &[u8], theirs: &mut Vec<u8>) -> Result<(), CollectiveError> {
        let mut all = vec![Vec::new(); self.ranks() as usize];
        self.group.exchange(peer, mine, &mut all[peer as usize])?;
        self.meddle(&mut all);
        *theirs = all.swap_remove(peer as usize);
        Ok(())
    }

    fn broadcast(&mut self, root: u32, bytes: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.group.broadcast(root, bytes)?;
        let mut all = vec![Vec::new(); self.ranks() as usize];
        all[root as usize] = std::mem::take(bytes);
        self.meddle(&mut all);
        *bytes = all.swap_remove(root as usize);
        Ok(())
    }
}

/// Two or three ranks, on the first of which somebody meddles; what all calls come to on each.
fn meddled(ranks: u32, meddle: impl FnMut(u32, &mut Vec<Vec<u8>>) + Send) -> Vec<Result<(), CollectiveError>> {
    let meddle = std::sync::Mutex::new(Some(meddle));
    together(Threads::group(ranks).expect("few"), |rank, group| {
        if rank > 0 {
            return Keyed::new(group, &key()).and_then(|mut group| everything(&mut group).map(drop));
        }
        let meddle = meddle.lock().expect("nobody panicked").take().expect("once");
        let mut group = Keyed::new(Meddled { group, calls: 0, meddle }, &key())?;
        let done = everything(&mut group);
        if done.is_err() {
            let mut values = [1.0];
            let later = group.all_reduce_sum(&mut values).expect_err("the group is of no use");
            assert!(matches!(later, CollectiveError::Engine { engine: "Keyed", .. }), "{later:?}");
            assert_eq!(values, [1.0]);
        }
        done.map(drop)
    })
}

/// Calls that a rank of two makes: one of `new`, and six in each of three rounds, of which a sum is two.
const CALLS: u32 = 1 + 3 * 6;

#[test]
fn a_message_that_was_changed_in_any_bit_is_refused_under_its_rank() {
    assert!(meddled(2, |_, _| ()).iter().all(Result::is_ok));
    for at in 0..CALLS {
        // A bit of the bytes, where there are any, or of the code; one byte less, one more, none at all.
        let changes: [fn(&mut Vec<u8>); 5] = [
            |bytes| bytes[0] ^= 1,
            |bytes| *bytes.last_mut().expect("a code") ^= 0x80,
            |bytes| bytes.truncate(bytes.len() - 1),
            |bytes| bytes.push(0),
            Vec::clear,
        ];
        for (change, of) in changes.into_iter().zip(0..) {
            let done = meddled(2, |call, all| {
                // Broadcasts of this rank itself have nothing of the other.
                let from = if all[1].is_empty() { 0 } else { 1 };
                if call == at {
                    change(&mut all[from]);
                }
            });
            let Err(CollectiveError::Forged { rank, .. }) = &done[0] else { panic!("{at}, {of}: {done:?}") };
            assert!(*rank <= 1, "{at}, {of}");
            // The other may have ended before; else it hears that this one has left.
            assert!(matches!(&done[1], Ok(()) | Err(CollectiveError::Left { rank: 0, .. })), "{at}, {of}: {done:?}");
        }
    }
}

#[test]
fn a_message_of_before_of_another_rank_or_of_another_session_is_refused() {
    // What rank 1 sent in the first round comes again in the second, in the operation of the same kind.
    for (first, again) in (1..7).zip(7..13) {
        let mut kept = Vec::new();
        let done = meddled(2, |call, all| {
            let from = if all[1].is_empty() { 0 } else { 1 };
            if call == first {
                kept.clone_from(&all[from]);
            } else if call == again {
                all[from].clone_from(&kept);
            }
        });
        assert!(matches!(done[0], Err(CollectiveError::Forged { .. })), "{again}: {done:?}");
    }
    // Equal bytes of two ranks change places: in an all-gather of the first round all are empty.
    let done = meddled(3, |call, all| {
        if call == 1 {
            all.swap(1, 2)
        }
    });
    assert!(matches!(done[0], Err(CollectiveError::Forged { rank: 1, .. })), "{done:?}");
    // A whole session, nonces and all, as rank 1 sent it before to a group with the same key.
    let mut of_before = Vec::new();
    assert!(meddled(2, |_, all| of_before.push(all.clone())).iter().all(Result::is_ok));
    let from_the_start = meddled(2, |call, all| all[1].clone_from(&of_before[call as usize][1]));
    assert!(matches!(from_the_start[0], Err(CollectiveError::Forged { rank: 1, .. })), "{from_the_start:?}");
    let other = &from_the_start[1];
    let refused = matches!(other, Err(CollectiveError::Forged { rank: 0, .. } | CollectiveError::Left { rank: 0, .. }));
    assert!(refused, "{other:?}");
}

#[test]
fn a_message_for_another_rank_is_refused() {
    let (give, take) = std::sync::mpsc::channel::<Vec<u8>>();
    let ends = std::sync::Mutex::new((Some(give), Some(take)));
    let done = together(Threads::group(3).expect("few"), |rank, group| {
        let (give, take) = match (rank, &mut *ends.lock().expect("nobody panicked")) {
            (0, ends) => (None, ends.1.take()),
            (2, ends) => (ends.0.take(), None),
            _ => (None, None),
        };
        // In the first all-to-all all parts are empty: what rank 1 has for rank 2 differs from what it has for rank 0
        // in the receiver alone.
        let meddle = move |call, all: &mut Vec<Vec<u8>>| match (call, &give, &take) {
            (2, Some(give), _) => give.send(all[1].clone()).expect("rank 0 takes it"),
            (2, _, Some(take)) => all[1] = take.recv().expect("rank 2 gives it"),
            _ => (),
        };
        Keyed::new(Meddled { group, calls: 0, meddle }, &key()).and_then(|mut group| everything(&mut group).map(drop))
    });
    assert_eq!(done[0], Err(CollectiveError::Forged { rank: 1, asked: "an all-to-all".into() }));
}

#[test]
fn ranks_with_other_keys_are_refused_before_anything_is_sent() {
    let done = together(Threads::group(3).expect("few"), |rank, group| {
        let key = if rank == 1 { Key::new([1; 32]) } else { key() };
        Keyed::new(group, &key).map(drop).expect_err("rank 1 has another key")
    });
    let asked = "an all-gather".to_owned();
    let forged = |rank| CollectiveError::Forged { rank, asked: asked.clone() };
    assert_eq!(done, [forged(1), forged(0), forged(1)]);
    assert!(done[0].to_string().contains("rank 1"), "{}", done[0]);
    assert_eq!(format!("{:?}", key()), "Key(..)", "it is not printed");
}

#[test]
fn ranks_that_ask_for_other_things_are_told_so() {
    let sums = together(Threads::group(2).expect("two"), |rank, group| {
        let mut group = keyed(group);
        group.all_reduce_sum(&mut vec![0.0; 4 + rank as usize]).expect_err("the counts differ")
    });
    assert!(
        sums.iter().any(|error| matches!(error, CollectiveError::Mismatch { .. }))
            && !sums.iter().any(|error| matches!(error, CollectiveError::Forged { .. })),
        "{sums:?}"
    );
    let mut group = keyed(Threads::group(1).expect("one").remove(0));
    assert_eq!(group.exchange(0, &[], &mut Vec::new()), Err(CollectiveError::Rank { got: 0, ranks: 1 }));
    // An exchange that fails before any operation of all ranks, and one after it.
    let later = together(Threads::group(2).expect("two"), |rank, group| {
        let mut group = keyed(group);
        (rank == 0).then(|| [0, 1].map(|_| group.exchange(1, &[], &mut Vec::new()).expect_err("rank 1 has left")))
    });
    let later = later[0].as_ref().expect("rank 0's");
    assert!(matches!(&later[0], CollectiveError::Left { rank: 1, .. }), "{later:?}");
    assert!(matches!(&later[1], CollectiveError::Engine { engine: "Keyed", .. }), "{later:?}");
    let mut group = keyed(Threads::group(1).expect("one").remove(0));
    assert_eq!(group.all_to_all(&[], &mut Vec::new()), Err(CollectiveError::Parts { got: 0, ranks: 1 }));
    let mut group = keyed(Threads::group(1).expect("one").remove(0));
    assert_eq!(group.broadcast(3, &mut Vec::new()), Err(CollectiveError::Rank { got: 3, ranks: 1 }));
}

#[test]
fn sealed_bytes_open_with_their_key_alone_and_unchanged() {
    for bytes in [&b""[..], b"a", &[0; 300]] {
        let sealed = key().seal(bytes);
        assert_eq!(key().open(&sealed).expect("its own key"), bytes);
        assert_eq!(sealed.len(), bytes.len() + 32);
        Key::new([0; 32]).open(&sealed).expect_err("another key");
        for bit in 0..8 * sealed.len() {
            let mut changed = sealed.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            key().open(&changed).expect_err("changed");
        }
        for length in 0..sealed.len() {
            let error = key().open(&sealed[..length]).expect_err("cut");
            assert_eq!(error.bytes, length);
        }
        key().open(&[&sealed[..], &[0]].concat()).expect_err("longer");
    }
    // HMAC-SHA-256 of the kind's length and name, number 0, two ranks of all ones, the length, and the bytes.
    let known = "b6ff110d6e07c25477de7bd156172121bf00af032fefca2448f924b058c6e0f7";
    let code: String = Key::new([7; 32]).seal(b"payload")[7..].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(code, known);
}
