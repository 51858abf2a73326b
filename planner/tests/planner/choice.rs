//! The algorithm of one exchange: by hand, against every way by itself, and where it changes.

use crate::common::Random;
use gradwire_planner::{Algorithm, Choice, CodecCost, Curve, Line, Network, PlanError};

const ENGINE: [Algorithm; 3] = [Algorithm::Ring, Algorithm::TwoPhase, Algorithm::MergeTree];

fn codec(name: &str, seconds: f64, bytes: f64) -> CodecCost {
    let speed = Curve::Line(Line::new(0.0, seconds));
    let (name, sums) = (name.to_owned(), false);
    CodecCost { name, encode: speed, decode: speed, bytes_per_element: bytes, sums, ..CodecCost::dense() }
}

fn quantizer(seconds: f64) -> CodecCost {
    CodecCost { two_phase: true, ..codec("qsgd:bits=4,bucket=64", seconds, 0.5) }
}

fn choice(ranks: u32, elements: u64, codecs: &[CodecCost]) -> Choice {
    let network = Network::new(1.0, 0.25).expect("a network");
    Choice::new(&network, ranks, elements, codecs, &ENGINE, 0.0).expect("valid")
}

#[test]
fn each_way_is_that_of_its_algorithm_by_hand() {
    let found = choice(4, 64, &[quantizer(0.5)]);
    let ways: Vec<(&str, Algorithm, f64)> =
        found.ways.iter().map(|way| (way.recipe.as_str(), way.algorithm, way.seconds)).collect();
    let wanted = [
        // 6 messages of a quarter of 256 bytes.
        ("none", Algorithm::Ring, 6.0 * 17.0),
        // Encoded, 3 messages of 32 bytes, decoded four times.
        ("qsgd:bits=4,bucket=64", Algorithm::AllGather, 32.0 + 3.0 * 9.0 + 128.0),
        // Encoded once and a quarter, 3 heads of 24 bytes, 6 messages of 8 bytes, decoded twice.
        ("qsgd:bits=4,bucket=64+twophase", Algorithm::TwoPhase, 40.0 + 3.0 * 7.0 + 6.0 * 3.0 + 64.0),
    ];
    assert_eq!(ways, wanted);
    assert_eq!((found.recipe.as_str(), found.seconds, found.dense), ("none", 102.0, 102.0));
}

#[test]
fn ranks_sizes_and_selections_change_the_choice() {
    let quantizer = [quantizer(0.0)];
    // Few messages where there is little to send, and 2 (P - 1) / P payloads where there is much.
    assert_eq!(choice(8, 64, &quantizer).recipe, "qsgd:bits=4,bucket=64");
    assert_eq!(choice(8, 6400, &quantizer).recipe, "qsgd:bits=4,bucket=64+twophase");
    // Between two ranks both send a payload, and one way has fewer messages.
    assert_eq!(choice(2, 6400, &quantizer).recipe, "qsgd:bits=4,bucket=64");
    // 15 payloads against 8 with 16 ranks, 3 against 4 with 4 ranks.
    let selection = [CodecCost { selects: true, ..codec("topk:0.01+ef", 0.0, 0.08) }];
    assert_eq!(choice(16, 64_000, &selection).recipe, "topk:0.01+ef+gtopk");
    assert_eq!(choice(4, 64_000, &selection).recipe, "topk:0.01+ef");
    let forgetful = [CodecCost { name: "topk:0.01".to_owned(), ..selection[0].clone() }];
    assert_eq!(choice(16, 64_000, &forgetful).recipe, "topk:0.01+ef+gtopk");
    // Of all codecs the fastest.
    assert_eq!(choice(16, 64_000, &[quantizer[0].clone(), selection[0].clone()]).recipe, "topk:0.01+ef+gtopk");
    // Three tenths of the entries with their indices, from eight ranks: more than the sum.
    let much = [CodecCost { selects: true, ..codec("topk:0.3+ef", 0.0, 1.325) }];
    assert_eq!(choice(8, 64_000, &much).recipe, "none");
    assert_eq!(choice(2, 64_000, &much).recipe, "topk:0.3+ef");
    // A rank alone sends nothing.
    let alone = choice(1, 64_000, &quantizer);
    assert_eq!((alone.recipe.as_str(), alone.seconds), ("none", 0.0));
}

/// No way that the engine and the codec admit is faster, and none is left out.
#[test]
fn the_choice_is_the_fastest_way() {
    let mut random = Random(9);
    for _ in 0..2000 {
        let network = Network::new(1e-6 + random.time(1024), 1e-10 + random.time(64) / 65_536.0).expect("a network");
        let (ranks, elements) = (1 + random.below(40) as u32, random.below(1 << 22));
        let codecs = [
            quantizer(random.time(64) / 65_536.0),
            CodecCost { selects: true, ..codec("topk:0.01+ef", random.time(64) / 65_536.0, 0.08) },
        ];
        let margin = random.below(4) as f64 / 16.0;
        let found = Choice::new(&network, ranks, elements, &codecs, &ENGINE, margin).expect("valid");
        assert_eq!(found.ways.len(), 5);
        let least = found.ways.iter().map(|way| way.seconds).fold(f64::INFINITY, f64::min);
        let pays = least < found.dense && found.dense - least >= margin * found.dense;
        assert_eq!(found.seconds, if pays { least } else { found.dense });
        assert_eq!(found.recipe == "none", !pays);
        assert!(found.ways.iter().any(|way| way.recipe == found.recipe && way.seconds == found.seconds));
        let read = Choice::from_json(&found.to_json().expect("numbers")).expect("its own");
        assert_eq!((read.recipe, read.ways.len()), (found.recipe, 5));
    }
}

#[test]
fn a_margin_is_asked_of_codecs() {
    let network = Network::new(1.0, 0.25).expect("a network");
    let found = |margin| Choice::new(&network, 2, 64, &[quantizer(0.0)], &ENGINE, margin).expect("valid");
    // 2 messages of 128 bytes against one of 32: 66 and 9 seconds.
    assert_eq!((found(0.0).seconds, found(0.0).dense), (9.0, 66.0));
    let saves = 57.0 / 66.0;
    assert_eq!(found(saves - 1e-9).recipe, "qsgd:bits=4,bucket=64");
    assert_eq!(found(saves + 1e-9).recipe, "none");
}

#[test]
fn bad_input_is_refused() {
    let network = Network::new(1.0, 0.25).expect("a network");
    let new = |ranks, codec: CodecCost, algorithms: &[Algorithm], margin| {
        Choice::new(&network, ranks, 64, &[codec], algorithms, margin).expect_err("refused")
    };
    assert!(matches!(new(0, quantizer(0.0), &ENGINE, 0.0), PlanError::Ranks { .. }));
    assert!(matches!(new(2, quantizer(-1.0), &ENGINE, 0.0), PlanError::Negative { .. }));
    assert!(matches!(new(2, quantizer(0.0), &[Algorithm::TwoPhase], 0.0), PlanError::Missing(_)));
    assert!(matches!(new(2, quantizer(0.0), &ENGINE, f64::NAN), PlanError::NotFinite { .. }));
    assert!(matches!(Choice::from_json("{}"), Err(PlanError::Json { .. })));
}
