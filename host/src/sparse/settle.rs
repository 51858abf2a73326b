//! The passes that subtract the sent values from a lazy residual. Pure.

use gradwire_kernels::params::{SelectParams, TILE, segment};

use super::select::Sent;
use crate::error::Error;
use crate::plan::{Bindings, Kernel, Limits, Params, Pass, Span};

/// Elements that are bound begin at multiples of this many, which are 256 bytes.
const UNIT: u64 = 64;

/// The table of segments, of which something was sent, and the passes that take it off.
///
/// # Errors
/// [`Error::Limit`] if the limits are too small for a tile or for the table.
pub(crate) fn settle(sent: &[Sent], limits: &Limits) -> Result<(Vec<u32>, Vec<Pass>), Error> {
    let mut table = Vec::with_capacity(sent.len() * segment::WORDS as usize);
    // Elements of each tile, in the order in which the table's segments have them.
    let mut tiles: Vec<(u64, u64)> = Vec::new();
    for s in sent {
        let mut words = [0u32; segment::WORDS as usize];
        words[segment::START as usize] = s.start as u32;
        words[segment::ELEMENTS as usize] = s.elements as u32;
        words[segment::FIRST_TILE as usize] = tiles.len() as u32;
        words[segment::SENT_KEY as usize] = s.key;
        words[segment::SENT_INDEX as usize] = s.index;
        table.extend(words);
        let end = s.start + s.elements;
        // Tiles begin at multiples of 32 elements, whatever a segment begins at.
        let bases = (s.start / 32 * 32..end).step_by(TILE as usize);
        tiles.extend(bases.map(|base| (base, end.min(base + u64::from(TILE)))));
    }
    let table_bytes = 4 * table.len() as u64;
    let needed = table_bytes.max(4 * (u64::from(TILE) + UNIT));
    if needed > limits.binding_bytes {
        return Err(Error::Limit { limit: "max_storage_buffer_binding_size", found: limits.binding_bytes, needed });
    }
    let mut passes = Vec::new();
    let mut first = 0;
    while first < tiles.len() {
        let start = tiles[first].0 / UNIT * UNIT;
        // Segments rise, and so do tiles.
        let fits = |(_, end): &&(u64, u64)| 4 * (end - start) <= limits.binding_bytes;
        let count = tiles[first..].iter().take(limits.groups.max(1) as usize).take_while(fits).count();
        let bound = tiles[first + count - 1].1 - start;
        let params = SelectParams {
            first: start as u32,
            bound: bound as u32,
            first_tile: first as u32,
            tiles: count as u32,
            segments: sent.len() as u32,
            ..SelectParams::default()
        };
        let bindings = Bindings {
            residual: Span { offset: 4 * start, bytes: 4 * bound },
            workspace: Span { offset: 0, bytes: table_bytes },
            ..Bindings::default()
        };
        passes.push(Pass {
            kernel: Kernel::TopKSettle,
            params: Params::Select(params),
            bindings,
            groups: count as u32,
        });
        first += count;
    }
    Ok((table, passes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_is_in_one_pass_and_bound_there() {
        let part = |start, elements| Sent { start, elements, key: 1, index: 0 };
        let sent = [part(5, 3), part(100, 8192), part(9000, 40_001), part(1 << 20, 1), part((1 << 20) + 31, 8161)];
        let (table, all) = settle(&sent, &Limits::NONE).expect("no limit");
        assert_eq!((table.len(), all.len()), (5 * segment::WORDS as usize, 1));
        assert_eq!(all[0].groups, 1 + 2 + 5 + 1 + 1, "a tile more where a segment begins within 32 elements");
        for limits in [
            Limits { groups: 3, ..Limits::NONE },
            Limits { binding_bytes: 4 * (8192 + 64), groups: 65_535, ..Limits::NONE },
        ] {
            let (_, passes) = settle(&sent, &limits).expect("they suffice");
            let mut next = 0;
            for pass in passes {
                let Params::Select(p) = pass.params else { panic!("a selection's parameters") };
                assert_eq!((p.first_tile, p.tiles), (next, pass.groups));
                assert!(pass.groups <= limits.groups && pass.bindings.residual.bytes <= limits.binding_bytes);
                assert!(pass.bindings.residual.offset.is_multiple_of(256));
                next += p.tiles;
            }
            assert_eq!(next, all[0].groups);
        }
        let small = Limits { binding_bytes: 1 << 15, ..Limits::NONE };
        assert!(matches!(settle(&sent, &small), Err(Error::Limit { .. })));
    }
}
