//! Counts of a listing of machine code.

use std::collections::{BTreeMap, HashMap};

/// What a listing holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Instructions.
    pub(super) all: u32,
    /// Those of the vector unit.
    pub(super) vector: u32,
    /// Cycles of the vector unit for 32 lanes, each instruction once.
    pub(super) cycles: u32,
    /// Those cycles in each loop that is in no other one.
    pub(super) loops: Vec<u32>,
    /// Every loop, those in others too, in the order in which they begin.
    pub(super) nest: Vec<Loop>,
}

/// A loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Loop {
    /// Loops that it is in.
    pub(super) depth: usize,
    /// Its cycles, without those of the loops in it.
    pub(super) own: u32,
}

/// Cycles of RDNA's vector unit for 32 lanes; 0 for what it does not run.
fn cycles(name: &str) -> u32 {
    let of_32_bits = ["v_mul_lo_u32", "v_mul_hi_u32", "v_mul_hi_i32", "v_mad_u64_u32", "v_mad_i64_i32"];
    let transcendental = ["v_rcp", "v_rsq", "v_sqrt", "v_log", "v_exp", "v_sin", "v_cos"];
    match name {
        _ if of_32_bits.iter().chain(&transcendental).any(|slow| name.starts_with(slow)) => 4,
        _ => u32::from(name.starts_with("v_")),
    }
}

impl Counts {
    /// Of a listing as RADV gives it: `BB3:` before a block, an instruction a line, its encoding after a semicolon.
    pub(super) fn of(listing: &str) -> Self {
        let mut counts = Self::default();
        let mut blocks = HashMap::new();
        // From the first instruction of a loop to the one after it.
        let mut loops: Vec<(usize, usize)> = Vec::new();
        let mut all: BTreeMap<usize, usize> = BTreeMap::new();
        let mut costs = Vec::new();
        for line in listing.lines() {
            let line = line.split(';').next().unwrap_or_default().trim();
            if let Some(block) = line.strip_suffix(':') {
                blocks.insert(block, costs.len());
                continue;
            }
            let mut words = line.split_whitespace();
            let Some(name) = words.next().filter(|name| name.contains('_')) else { continue };
            let cost = cycles(name);
            costs.push(cost);
            counts.all += 1;
            counts.vector += u32::from(cost > 0);
            counts.cycles += cost;
            // A branch to a block that came before closes a loop.
            let back = words.next().and_then(|to| blocks.get(to)).filter(|_| name.contains("branch"));
            if let Some(&start) = back {
                all.insert(start, costs.len());
                loops.retain(|&(begun, _)| begun < start);
                if loops.last().is_none_or(|&(_, end)| end <= start) {
                    loops.push((start, costs.len()));
                } else if let Some(outer) = loops.last_mut() {
                    outer.1 = costs.len();
                }
            }
        }
        counts.loops = loops.iter().map(|&(start, end)| costs[start..end].iter().sum()).collect();
        // The innermost loop that each instruction is in: of those around it, the last to begin.
        let inside = |at: usize| all.iter().filter(move |&(&start, &end)| (start..end).contains(&at));
        let own = |start: usize, end: usize| {
            let mine = (start..end).filter(|&at| inside(at).next_back().is_some_and(|(&s, _)| s == start));
            mine.map(|at| costs[at]).sum()
        };
        counts.nest =
            all.iter().map(|(&start, &end)| Loop { depth: inside(start).count() - 1, own: own(start, end) }).collect();
        counts
    }

    /// Cycles of a thread, where `turns` has the turns of each loop for each time that what is around it comes to it.
    pub(super) fn executed(&self, turns: &[u32]) -> u32 {
        let in_loops: u32 = self.nest.iter().map(|one| one.own).sum();
        let mut around: Vec<u32> = Vec::new();
        let each = self.nest.iter().zip(turns).map(|(one, turns)| {
            around.truncate(one.depth);
            around.push(*turns);
            one.own * around.iter().product::<u32>()
        });
        self.cycles - in_loops + each.sum::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_in_a_loop_is_counted_with_it_and_another_apart() {
        let listing = "BB0:\n\tv_mov_b32_e32 v0, 0 ; 7e\nBB1:\n\ts_nop 0\nBB2:\n\tv_mul_lo_u32 v1, v0, v0 ; d5\n\
            \ts_cbranch_scc1 BB2 ; bf\n\tv_add_nc_u32_e32 v1, v0, v0\n\ts_branch BB1\nBB3:\n\tv_xor_b32_e32 v0, v0, v1\n\
            \ts_cbranch_vccnz BB4\n\ts_cbranch_scc0 BB3\nBB4:\n\ts_endpgm\n";
        let counts = Counts::of(listing);
        let nest = [(0, 1), (1, 4), (0, 1)].map(|(depth, own)| Loop { depth, own });
        assert_eq!(counts, Counts { all: 10, vector: 4, cycles: 7, loops: vec![5, 1], nest: nest.to_vec() });
        // One outside of loops; twice the first loop, in each turn three times the one in it; the last loop five times.
        assert_eq!(counts.executed(&[2, 3, 5]), 1 + 2 + 2 * 3 * 4 + 5);
    }
}
