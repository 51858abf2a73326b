//! The flow of a kernel: where divergent lanes meet again, and whether registers are written before they are read.

/// For each statement, the one that every way from it to the end passes first: its immediate postdominator, `count` for
/// the end. By Cooper, Harvey and Kennedy's iteration (2001) on the reversed flow.
pub(crate) fn joins(successors: &[Vec<usize>]) -> Vec<usize> {
    let count = successors.len();
    let end = count;
    let mut predecessors = vec![Vec::new(); count + 1];
    for (from, to) in successors.iter().enumerate() {
        for to in to {
            predecessors[*to].push(from);
        }
    }
    // Reverse postorder from the end, without recursion: a kernel is thousands of statements in a row.
    let mut order = Vec::with_capacity(count + 1);
    let mut seen = vec![false; count + 1];
    let mut path = vec![(end, 0)];
    seen[end] = true;
    while let Some((at, next)) = path.pop() {
        match predecessors[at].get(next) {
            None => order.push(at),
            Some(before) => {
                path.push((at, next + 1));
                if !std::mem::replace(&mut seen[*before], true) {
                    path.push((*before, 0));
                }
            }
        }
    }
    order.reverse();
    let mut rank = vec![usize::MAX; count + 1];
    for (position, at) in order.iter().enumerate() {
        rank[*at] = position;
    }
    let mut join = vec![usize::MAX; count + 1];
    join[end] = end;
    let mut changed = true;
    while changed {
        changed = false;
        for &at in &order[1..] {
            let known = successors[at].iter().copied().filter(|to| join[*to] != usize::MAX);
            let meet = known.reduce(|mut a, mut b| {
                while a != b {
                    while rank[a] > rank[b] {
                        a = join[a];
                    }
                    while rank[b] > rank[a] {
                        b = join[b];
                    }
                }
                a
            });
            if let Some(meet) = meet
                && join[at] != meet
            {
                join[at] = meet;
                changed = true;
            }
        }
    }
    // A loop without a way out is not reached from the end; it has no join but the end.
    join.iter_mut().for_each(|j| *j = (*j).min(end));
    join.truncate(count);
    join
}

/// Which registers a statement reads, and which it writes for certain.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uses {
    pub(crate) reads: Vec<usize>,
    pub(crate) writes: Vec<usize>,
}

/// The statements that may read a register that nothing has written, each with the register.
pub(crate) fn read_before_written(successors: &[Vec<usize>], uses: &[Uses], registers: usize) -> Vec<(usize, usize)> {
    let words = registers.div_ceil(64);
    let count = uses.len();
    // What is written on every way to a statement; all, until a way is known.
    let mut before = vec![vec![!0u64; words]; count];
    let mut work = vec![0];
    if let Some(first) = before.first_mut() {
        first.fill(0);
    }
    while let Some(at) = work.pop() {
        if at >= count {
            continue;
        }
        let mut after = before[at].clone();
        for register in &uses[at].writes {
            after[register / 64] |= 1 << (register % 64);
        }
        for &to in successors[at].iter().filter(|to| **to < count) {
            let mut fewer = false;
            for (known, here) in before[to].iter_mut().zip(&after) {
                fewer |= *known & !here != 0;
                *known &= here;
            }
            if fewer {
                work.push(to);
            }
        }
    }
    let mut found = Vec::new();
    for (at, uses) in uses.iter().enumerate() {
        let unwritten = |r: &usize| before[at][r / 64] >> (r % 64) & 1 == 0;
        found.extend(uses.reads.iter().copied().filter(unwritten).map(|register| (at, register)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_joins_where_both_sides_meet() {
        // 0: branch to 2; 1: to 3; 2: falls; 3: loop back to 0, or on; 4: end.
        let successors = vec![vec![2, 1], vec![3], vec![3], vec![0, 4], vec![5]];
        assert_eq!(joins(&successors), [3, 3, 3, 4, 5]);
        // One side leaves the kernel: the two never meet before the end.
        assert_eq!(joins(&[vec![2, 1], vec![4], vec![3], vec![4]]), [4, 4, 3, 4]);
        assert_eq!(joins(&[vec![0]]), [1], "a loop without a way out");
    }

    #[test]
    fn a_register_written_on_one_way_only() {
        let successors = vec![vec![1, 2], vec![2], vec![3]];
        let uses = |reads: &[usize], writes: &[usize]| Uses { reads: reads.to_vec(), writes: writes.to_vec() };
        let some = [uses(&[], &[]), uses(&[], &[70]), uses(&[70], &[])];
        assert_eq!(read_before_written(&successors, &some, 80), [(2, 70)]);
        let all = [uses(&[], &[70]), uses(&[], &[70]), uses(&[70], &[])];
        assert_eq!(read_before_written(&successors, &all, 80), []);
    }
}
