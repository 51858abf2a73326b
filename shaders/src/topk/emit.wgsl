@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read_write> residual: array<u32>;
@group(0) @binding(3) var<storage, read_write> workspace: array<u32>;
@group(0) @binding(4) var<storage, read_write> indices: array<u32>;
@group(0) @binding(5) var<storage, read_write> values: array<u32>;

// What is counted of the workgroup's tiles.
var<workgroup> counted: array<u32, 128>;
// What each lane has: kept elements, and those of the key below the cut.
var<workgroup> kept_of: array<u32, 256>;
var<workgroup> ties_of: array<u32, 256>;

fn is_below_sure(index: u32, tile: u32, cut: u32) -> bool {
    return state(index, AGAIN) != 0u && word(params.info + 4u * tile + 3u) != 0u && cut == sure_of(index);
}

// What is kept of a segment: elements above a key, and of those that have it the ones up to an index.
fn leave(index: u32, key: u32, element: u32) {
    workspace[index * SEGMENT_WORDS + SENT_KEY] = key;
    workspace[index * SEGMENT_WORDS + SENT_INDEX] = element;
}

// The same where no ties are counted: all from the cut on. Of tiles that were filtered again, those in front may have the key below
// it sure: up to their end those are kept, and behind it none.
fn leave_without_ties(index: u32, tile: u32, cut: u32, is_lower: bool) {
    let begin = table(index, FIRST_TILE);
    if !is_lower {
        if tile == begin {
            leave(index, cut, 0xffffffffu);
        }
        return;
    }
    let end = table(index, START) + table(index, ELEMENTS);
    let behind = extent_of(table(index, START), table(index, ELEMENTS), tile - begin).z;
    if behind == end || !is_below_sure(index, tile + 1u, cut) {
        leave(index, cut - 1u, behind - 1u);
    }
}

// What: writes the index and the value of every kept entry (`kernels/topk/emit.rs`).
// Arguments: SelectParams; input, or residual (FEEDBACK; with SENT, zero is written where an entry is kept); workspace (with
// LEAVES_SENT, what was sent of each segment is written into the table, two words that are not read here); indices
// and values (a word for each entry of the whole selection).
// Thread mapping: a team of 32 lanes takes up to 8 tiles one after another, a lane neighbouring elements of what is visited.
// Workgroup memory: 1152 words, 4608 bytes.
// Launch contract: a workgroup for each 8 * tiles_to_emit(tiles) of `tiles` tiles, from first_tile on.
// Traffic: the candidates twice, the second time from cache; 8 bytes per entry; 8 bytes for each
// of up to 127 tiles, and for as many sums of 64 and of 4096 tiles.
// Determinism: an entry's place in the output is the number of entries before it.
// Edge cases: tiles whose candidates found no room, or whose ties are no candidates, are read from the gradient.
@compute @workgroup_size(256)
fn topk_emit(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let lane = thread & 31u;
    let each_team = tiles_to_emit(params.tiles);
    let first_tile = params.first_tile + group.x * 8u * each_team;
    let before_group = between(false, table(segment_of(first_tile), FIRST_TILE), first_tile, thread);
    if thread < 16u * each_team && first_tile + thread / 2u < params.first_tile + params.tiles {
        counted[thread] = word(params.counts + 2u * first_tile + thread);
    }
    workgroupBarrier();
    for (var round = 0u; round < each_team; round++) {
        let of_launch = (group.x * 8u + (thread >> 5u)) * each_team + round;
        let tile = params.first_tile + min(of_launch, params.tiles - 1u);
        let index = segment_of(tile);
        var cut = state(index, CUT);
        // What the segment has before the workgroup's first tile, and then up to this one.
        let begin = table(index, FIRST_TILE);
        var sums = select(before_group, vec2<u32>(0u), begin > first_tile);
        for (var other = max(begin, first_tile); other < tile; other++) {
            let at = 2u * (other - first_tile);
            sums += vec2<u32>(counted[at], counted[at + 1u]);
        }
        let allowed = state(index, TIES);
        let ties_before = min(sums.y, allowed);
        let ties_here = min(sums.y + counted[2u * (tile - first_tile) + 1u], allowed) - ties_before;
        let kept_here = counted[2u * (tile - first_tile)];
        var visit = candidates(tile, false);
        let elsewhere = cut == floor_of(index) && ties_here > 0u;
        if elsewhere || visit.first == NOWHERE {
            visit = gradient(index, tile);
        }
        // In a tile that was filtered again elements of the key below may be sure, and were counted as such.
        let is_lower = is_below_sure(index, tile, cut);
        if has(FLAG_LEAVES_SENT) && allowed == 0u && lane == 0u && of_launch < params.tiles {
            leave_without_ties(index, tile, cut, is_lower);
        }
        cut -= select(0u, 1u, is_lower);
        if of_launch >= params.tiles || kept_here + ties_here == 0u {
            visit.count = 0u;
        }
        let each = (visit.count + 31u) / 32u;
        let first = min(lane * each, visit.count);
        let behind = min(first + each, visit.count);
        var kept = 0u;
        var ties = 0u;
        for (var at = first; at < behind; at++) {
            let k = key(visited(visit, at));
            kept += select(0u, 1u, k >= cut);
            ties += select(0u, 1u, k == cut - 1u);
        }
        // The last round's words were read by all.
        workgroupBarrier();
        kept_of[thread] = kept;
        ties_of[thread] = ties;
        workgroupBarrier();
        kept = 0u;
        ties = 0u;
        for (var other = thread - lane; other < thread; other++) {
            kept += kept_of[other];
            ties += ties_of[other];
        }
        let output = table(index, OUTPUT) + sums.x + ties_before;
        let base = extent_of(table(index, START), table(index, ELEMENTS), tile - begin).x;
        for (var at = first; at < behind; at++) {
            let raw = visited(visit, at);
            let k = key(raw);
            let is_tie = k == cut - 1u;
            if k >= cut || (is_tie && ties < ties_here) {
                let to = output + kept + min(ties, ties_here);
                var place = visit.place + at;
                if !visit.in_gradient {
                    place = word(params.places + visit.first + at);
                }
                indices[to] = base + place;
                values[to] = bits_of(raw);
                // The last tie that is kept is the last entry of its key.
                if has(FLAG_LEAVES_SENT) && is_tie && ties + 1u == ties_here && ties_before + ties_here == allowed {
                    leave(index, k, base + place);
                }
                if has(FLAG_SENT) {
                    residual[base + place - params.first] = 0u;
                }
            }
            kept += select(0u, 1u, k >= cut);
            ties += select(0u, 1u, is_tie);
        }
    }
}
