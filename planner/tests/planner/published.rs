//! The published rules once more, over whole arrays as the papers have them: layer `L - 1` is ready first, and every
//! merge computes all start times again. The library's rules walk once.

use crate::common::Random;
use gradwire_planner::{CodecCost, Curve, Groups, Line, Merging, Profile, Route, Rule, Sparse};

/// Sizes and backward times in the papers' order.
fn reversed(profile: &Profile) -> (Vec<f64>, Vec<f64>) {
    let layers = profile.layers().iter().rev();
    layers.map(|layer| (layer.elements as f64, layer.backward)).unzip()
}

/// The groups between cuts: `cuts[l]` tells whether layer `l` is not merged into `l - 1`.
fn groups(cuts: &[bool]) -> Vec<usize> {
    let mut lengths = vec![1];
    for l in (1..cuts.len()).rev() {
        match lengths.last_mut() {
            Some(length) if !cuts[l] => *length += 1,
            _ => lengths.push(1),
        }
    }
    lengths
}

/// MG-WFBP, Algorithm 1.
fn mg_wfbp(profile: &Profile, cost: Line, bytes: f64) -> Vec<usize> {
    let (mut p, tb) = reversed(profile);
    let count = p.len();
    // A layer that is merged away takes no time.
    let t = |p: f64| if p == 0.0 { 0.0 } else { cost.at(p * bytes) };
    let mut ready = vec![profile.forward(); count];
    let mut now = profile.forward();
    for l in (0..count).rev() {
        now += tb[l];
        ready[l] = now;
    }
    let starts = |p: &[f64]| {
        let mut start = ready.clone();
        for l in (0..count - 1).rev() {
            start[l] = start[l].max(start[l + 1] + t(p[l + 1]));
        }
        start
    };
    let mut cuts = vec![true; count];
    for l in (1..count).rev() {
        let start = starts(&p)[l];
        if ready[l - 1] < start + t(p[l]) && (start > ready[l - 1] || ready[l - 1] - start < cost.start) {
            p[l - 1] += p[l];
            p[l] = 0.0;
            cuts[l] = false;
        }
    }
    groups(&cuts)
}

/// OMGS. The program's loop begins at `L - 2`, and its first two layers are one group.
fn omgs(profile: &Profile, sparsify: Line, exchange: Line, program: bool) -> Vec<usize> {
    let (mut p, mut tb) = reversed(profile);
    let count = p.len();
    let s = |p: f64| if p == 0.0 { 0.0 } else { sparsify.at(p) };
    let t = |p: f64| if p == 0.0 { 0.0 } else { exchange.at(p) };
    let mut cuts = vec![true; count];
    for l in (1..count).rev() {
        if program && l == count - 1 {
            cuts[l] = false;
            continue;
        }
        // When each layer's backward pass ends, and when its exchange starts.
        let (mut computed, mut start) = (vec![0.0; count], vec![0.0; count]);
        let (mut now, mut free) = (profile.forward(), 0.0f64);
        for k in (0..count).rev() {
            computed[k] = now + tb[k];
            now = computed[k] + s(p[k]);
            start[k] = free.max(now);
            // What is merged away holds nothing up.
            free = if p[k] == 0.0 { free } else { start[k] + t(p[k]) };
        }
        let both = p[l] + p[l - 1];
        let waits = tb[l - 1] + s(both) - s(p[l]) - s(p[l - 1]) - (start[l] - (computed[l] + s(p[l])));
        if waits < t(p[l]) + t(p[l - 1]) - t(both) {
            tb[l - 1] += tb[l];
            tb[l] = 0.0;
            p[l - 1] = both;
            p[l] = 0.0;
            cuts[l] = false;
        }
    }
    groups(&cuts)
}

#[test]
fn rules_are_as_published() {
    let mut random = Random(12);
    let mut differ = 0;
    for case in 0..5_000 {
        let profile = random.profile(12);
        let mut line = |most: u64| Line::new(random.time(most), random.time(16));
        let (sparsify, exchange) = (line(256), line(1024));
        let merging = Merging::new(&profile, exchange, 4.0).expect("valid");
        assert_eq!(Vec::from(merging.greedy()), mg_wfbp(&profile, exchange, 4.0), "case {case}");
        let encode = Curve::Line(sparsify);
        let codec = CodecCost { encode, bytes_per_element: 1.0, ..CodecCost::dense() };
        let sparse = Sparse::new(&profile, Route { codec, exchange, payloads: 1 }).expect("valid");
        let [paper, program] = [Rule::Paper, Rule::Program].map(|rule| Vec::from(sparse.rule(rule)));
        assert_eq!(paper, omgs(&profile, sparsify, exchange, false), "case {case}");
        assert_eq!(program, omgs(&profile, sparsify, exchange, true), "case {case}");
        differ += u32::from(paper != program && Groups::each(profile.layers().len()).len() > 2);
    }
    assert!(differ > 100, "{differ}: the two forms must differ");
}
