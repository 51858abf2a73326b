//! What a training gives to the network.

use gradwire_collectives::{Collective, CollectiveError, Sent};

use super::gpu::Group;

/// Bytes of a rank, from the first step of a run on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Bytes {
    /// Payloads and factors that its compressor gave to the group.
    pub(crate) handed: u64,
    /// What it sent to other ranks: an all-gather sends a payload to each of them.
    pub(crate) sent: u64,
    /// What it sent to ranks of other machines.
    pub(crate) left: u64,
}

impl Bytes {
    /// As eight bytes for each.
    pub(crate) fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        for (into, number) in bytes.chunks_exact_mut(8).zip([self.handed, self.sent, self.left]) {
            into.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// What [`Bytes::to_bytes`] made.
    pub(crate) fn from_bytes(bytes: &[u8; 24]) -> Self {
        let (numbers, _) = bytes.as_chunks::<8>();
        let number = |at: usize| numbers.get(at).map_or(0, |bytes| u64::from_le_bytes(*bytes));
        Self { handed: number(0), sent: number(1), left: number(2) }
    }
}

/// The count of a rank's traffic.
pub(crate) struct Traffic {
    /// Where the engine counts.
    sent: Option<Sent>,
    /// Whether a rank is on another machine than this one.
    is_far: Vec<bool>,
    handed: u64,
    /// What was sent before the first step, and between steps.
    before: Bytes,
    /// After the last step.
    last: Bytes,
}

impl Traffic {
    /// Counts from now on. Every rank calls it.
    pub(crate) fn new(group: &mut impl Group) -> Result<Self, CollectiveError> {
        let names = machines(group)?;
        let own = names.get(group.rank() as usize).cloned().unwrap_or_default();
        let is_far = names.iter().map(|name| *name != own).collect();
        let mut traffic =
            Self { sent: group.sent(), is_far, handed: 0, before: Bytes::default(), last: Bytes::default() };
        traffic.before = traffic.now();
        Ok(traffic)
    }

    /// What was sent until now, where a step has handed over so many bytes more.
    pub(crate) fn step(&mut self, handed: u64) -> Bytes {
        self.handed += handed;
        let (now, before) = (self.now(), self.before);
        self.last = Bytes { handed: now.handed, sent: now.sent - before.sent, left: now.left - before.left };
        self.last
    }

    /// Leaves out what was sent since the last step: a checkpoint is no part of one.
    pub(crate) fn leave_out(&mut self) {
        let (now, last) = (self.now(), self.last);
        (self.before.sent, self.before.left) = (now.sent - last.sent, now.left - last.left);
    }

    /// Whether the engine counts what it sends.
    pub(crate) fn is_counted(&self) -> bool {
        self.sent.is_some()
    }

    /// On how many machines the ranks are, if there is another one than this.
    pub(crate) fn has_far(&self) -> bool {
        self.is_far.contains(&true)
    }

    fn now(&self) -> Bytes {
        let Some(sent) = &self.sent else { return Bytes { handed: self.handed, ..Bytes::default() } };
        let far = (0..).zip(&self.is_far).filter(|(_, is_far)| **is_far);
        Bytes { handed: self.handed, sent: sent.total(), left: far.map(|(rank, _)| sent.to(rank)).sum() }
    }
}

/// The host name of each rank's machine, which tells machines apart. Containers have names of their own.
fn machines(group: &mut impl Collective) -> Result<Vec<Vec<u8>>, CollectiveError> {
    let name = std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
    let mut names = Vec::new();
    group.all_gather(&name, &mut names)?;
    Ok(names)
}
