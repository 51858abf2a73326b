//! Profiles, networks and costs: what is read, and what is refused where.

use gradwire_planner::{
    Algorithm, CodecCost, Curve, Fit, Layer, Line, MAX_RANKS, Network, PRESETS, PlanError, Profile,
};

const GOOD: &str = r#"{"forward": 0.5, "layers": [
    {"name": "a", "elements": 8, "backward": 0.25}, {"name": "b", "elements": 2, "backward": 0.125}]}"#;

#[test]
fn a_profile_is_read_and_written() {
    let profile = Profile::from_json(GOOD).expect("valid");
    assert_eq!(profile.ready(), [0.75, 0.875]);
    assert_eq!((profile.backward(), profile.elements()), (0.375, 10));
    let written = serde_json::to_string(&profile).expect("plain data");
    assert_eq!(Profile::from_json(&written), Ok(profile.clone()));
    assert_eq!(serde_json::from_str::<Profile>(&written).expect("the same"), profile);
}

#[test]
fn a_bad_profile_is_refused_at_its_place() {
    let cases = [
        ("0.25", "-0.25", r#"layer 0 ("a"), field `backward` is -0.25, and may not be negative"#),
        ("0.125", "null", r#"layer 1 ("b"), field `backward` is missing"#),
        (r#", "backward": 0.125"#, "", r#"layer 1 ("b"), field `backward` is missing"#),
        ("0.125", r#""slow""#, r#"layer 1 ("b"), field `backward` must be a number of seconds, and is "slow""#),
        ("8", "0", r#"layer 0 ("a"), field `elements` is zero"#),
        ("8", "-8", r#"layer 0 ("a"), field `elements` is -8, and may not be negative"#),
        ("8", "8.5", r#"layer 0 ("a"), field `elements` must be a whole number of elements, and is 8.5"#),
        ("0.5", "-1", "field `forward` is -1, and may not be negative"),
        (r#""forward": 0.5, "#, "", "field `forward` is missing"),
        ("elements", "numel", "unknown field `numel`"),
        ("}]}", "}]", "line 2"),
    ];
    for (from, to, wanted) in cases {
        let error = Profile::from_json(&GOOD.replacen(from, to, 1)).expect_err(wanted).to_string();
        assert!(error.contains(wanted), "{from} -> {to}: {error}");
    }
    assert_eq!(Profile::from_json(r#"{"forward": 1, "layers": []}"#), Err(PlanError::NoLayers));
    let huge = vec![Layer::new("c", u64::MAX, 0.0), Layer::new("d", 1, 0.0)];
    assert_eq!(Profile::new(1.0, huge), Err(PlanError::TooManyElements));
    for time in [f64::NAN, f64::INFINITY] {
        let error = Profile::new(1.0, vec![Layer::new("c", 1, time)]).expect_err("no time");
        assert!(matches!(error, PlanError::NotFinite { ref place, .. } if place.field == "backward"), "{error}");
        assert!(matches!(Profile::new(time, vec![Layer::new("c", 1, 0.0)]), Err(PlanError::NotFinite { .. })));
    }
}

#[test]
fn a_network_that_costs_nothing_is_refused() {
    assert!(matches!(Network::new(0.0, 1.0), Err(PlanError::Zero { place, .. }) if place.field == "alpha"));
    assert!(matches!(Network::new(1.0, 0.0), Err(PlanError::Zero { place, .. }) if place.field == "beta"));
    assert!(matches!(Network::new(-1.0, 1.0), Err(PlanError::Negative { .. })));
    assert!(matches!(Network::new(f64::NAN, 1.0), Err(PlanError::NotFinite { .. })));
    let error = serde_json::from_str::<Network>(r#"{"alpha": 0, "beta": 1}"#).expect_err("zero").to_string();
    assert!(error.contains("field `alpha` is zero"), "{error}");
    for preset in PRESETS {
        let again = Network::new(preset.network.alpha(), preset.network.beta());
        assert_eq!((again, Network::preset(preset.name)), (Ok(preset.network), Ok(preset.network)), "{}", preset.name);
    }
}

#[test]
fn fits_leave_residuals_that_no_other_line_makes_smaller() {
    let measured = [(0.0, 3.0), (1.0, 4.0), (2.0, 7.0), (3.0, 12.0)];
    let fit = Fit::least_squares(&measured).expect("a line");
    assert_eq!(fit.line, Line::new(2.0, 3.0));
    assert_eq!((fit.rms(), fit.worst()), (1.0, 1.0));
    // The sum of squares is 4 here, and larger for every line beside it.
    for (start, per_unit) in [(0.5, 0.0), (-0.5, 0.0), (0.0, 0.25), (0.0, -0.25), (0.25, -0.125)] {
        let other = Line::new(2.0 + start, 3.0 + per_unit);
        let squares: f64 = measured.iter().map(|&(x, y)| (y - other.at(x)).powi(2)).sum();
        assert!(squares > 4.0, "{other:?}");
    }
    // The same for errors as parts of what was measured, of which a link is made.
    let measured = [(64.0, 2.0e-6), (4096.0, 4.0e-6), (65536.0, 3.0e-5), (1048576.0, 9.0e-4)];
    let (network, fit) = Network::fit(&measured).expect("a link");
    assert!(Fit::least_squares(&measured).expect("a line").line.start < 0.0);
    let squares = |line: Line| measured.iter().map(|&(x, y)| (line.at(x) / y - 1.0).powi(2)).sum::<f64>();
    let least = squares(fit.line);
    assert_eq!(fit.line, Line::new(network.alpha(), network.beta()));
    for (start, per_unit) in [(0.01, 0.0), (-0.01, 0.0), (0.0, 0.01), (0.0, -0.01), (0.01, -0.01), (0.01, 0.01)] {
        let other = Line::new(fit.line.start * (1.0 + start), fit.line.per_unit * (1.0 + per_unit));
        assert!(squares(other) > least, "{other:?}");
    }
    for few in [&[][..], &[(1.0, 1.0)], &[(2.0, 1.0), (2.0, 3.0)]] {
        assert_eq!(Fit::least_squares(few), Err(PlanError::Fit { sizes: few.len().min(1) }));
    }
    assert!(matches!(Fit::least_squares(&[(1.0, f64::NAN), (2.0, 1.0)]), Err(PlanError::NotFinite { .. })));
    assert!(matches!(Network::fit(&[(1.0, 1.0), (2.0, 3.0)]), Err(PlanError::Negative { .. })));
    assert!(matches!(Network::fit(&[(1.0, 0.0), (2.0, 3.0)]), Err(PlanError::Zero { .. })));
}

/// Each algorithm step by step, on messages: what the formulas must come to.
#[test]
fn collectives_cost_what_their_messages_do() {
    let network = Network::new(1.0, 0.0078125).expect("a link");
    let message = network.message();
    for ranks in [1u32, 2, 3, 4, 5, 8, 16, 31, 64] {
        let bytes = f64::from(ranks) * 32.0;
        let time = |algorithm: Algorithm| algorithm.cost(&network, ranks).expect("few ranks").at(bytes);
        // In a ring every rank sends a part in every step.
        let ring: f64 = (0..2 * (ranks - 1)).map(|_| message.at(32.0)).sum();
        assert!((time(Algorithm::Ring) - ring).abs() <= ring * 4.0 * f64::EPSILON, "{ranks}");
        let gather: f64 = (1..ranks).map(|_| message.at(bytes)).sum();
        assert_eq!(time(Algorithm::AllGather), gather, "{ranks}");
        // Recursive doubling: who holds the sum of how many ranks, until all hold all.
        let mut power = 1;
        let mut doubling = 0.0;
        while 2 * power <= ranks {
            power *= 2;
            doubling += message.at(bytes);
        }
        if power != ranks {
            doubling += 2.0 * message.at(bytes);
        }
        assert_eq!(time(Algorithm::RecursiveDoubling), doubling, "{ranks}");
        // A piece to each owner, and a piece of the sum from each.
        assert_eq!(time(Algorithm::TwoPhase), time(Algorithm::Ring), "{ranks}");
        // A broadcast: every rank that has the bytes sends them on, until nobody lacks them.
        let (mut reached, mut broadcast) = (1, 0.0);
        while reached < ranks {
            reached *= 2;
            broadcast += message.at(bytes);
        }
        assert_eq!(time(Algorithm::Tree), 2.0 * broadcast, "{ranks}");
        assert_eq!(time(Algorithm::MergeTree), 2.0 * broadcast, "{ranks}");
    }
    // Messages that are sent at once: the last starts after the gaps, and all bytes go through one port.
    let posted = network.with_gap(0.25).expect("a gap");
    for ranks in [1u32, 2, 3, 8, 31] {
        let bytes = f64::from(ranks) * 32.0;
        let time = |algorithm: Algorithm| algorithm.cost(&posted, ranks).expect("few ranks").at(bytes);
        let burst = |each: f64| {
            let others = f64::from(ranks - 1);
            if ranks == 1 { 0.0 } else { 1.0 + (others - 1.0) * 0.25 + others * each * 0.0078125 }
        };
        assert_eq!(time(Algorithm::AllGather), burst(bytes), "{ranks}");
        assert_eq!(time(Algorithm::Direct), 2.0 * burst(32.0), "{ranks}");
        assert_eq!(time(Algorithm::TwoPhase), time(Algorithm::Direct), "{ranks}");
        // Rings and trees send a message when one has arrived.
        for algorithm in [Algorithm::Ring, Algorithm::Tree, Algorithm::RecursiveDoubling, Algorithm::MergeTree] {
            assert_eq!(algorithm.cost(&posted, ranks), algorithm.cost(&network, ranks), "{ranks}");
        }
    }
    assert!(matches!(network.with_gap(-1.0), Err(PlanError::Negative { .. })));
    assert!(matches!(network.with_gap(f64::NAN), Err(PlanError::NotFinite { .. })));
    for ranks in [0, MAX_RANKS + 1, u32::MAX] {
        for algorithm in Algorithm::ALL {
            let error = algorithm.cost(&network, ranks).expect_err("too many or none");
            assert!(matches!(error, PlanError::Ranks { found, .. } if found == ranks), "{error}");
        }
    }
}

#[test]
fn costs_of_codecs() {
    let dense = CodecCost::dense();
    assert_eq!((dense.check(), dense.bytes(3), dense.encode.at(3)), (Ok(()), 12.0, 0.0));
    assert_eq!(Curve::Sort { scale: 0.5 }.at(8), 12.0);
    assert_eq!((Curve::Sort { scale: 0.5 }.at(0), Curve::Sort { scale: 0.5 }.at(1)), (0.0, 0.0));
    let negative = CodecCost { decode: Curve::Line(Line::new(0.0, -1.0)), ..CodecCost::dense() };
    assert!(matches!(negative.check(), Err(PlanError::Negative { place, .. }) if place.field == "decode.per_unit"));
    let silent = CodecCost { rounds: 0, ..CodecCost::dense() };
    assert!(matches!(silent.check(), Err(PlanError::Zero { place, .. }) if place.field == "rounds"));
    let endless = CodecCost { header: f64::INFINITY, ..CodecCost::dense() };
    assert!(matches!(endless.check(), Err(PlanError::NotFinite { place, .. }) if place.field == "header"));
}

#[test]
fn costs_are_read_from_a_bench() {
    let row = |codec: &str, encode: &str, add: &str, dtype: &str| {
        format!(
            r#"{{"codec": "{codec}", "settings": {{"label": "4 bit / 64", "dtype": "{dtype}", "bits": 4}}, "elements": 9,
                "encode_gbps": {encode}, "decode_gbps": 16, "decode_add_gbps": {add}, "ratio": 8, "cosine": 1}}"#
        )
    };
    let file = |rows: &[String]| format!(r#"{{"device": "any", "rows": [{}]}}"#, rows.join(","));
    let rows = [row("qsgd", "2", "4", "f32"), row("powersgd", "null", "null", "f32"), row("topk", "8", "null", "f16")];
    let costs = CodecCost::from_bench(&file(&rows)).expect("as written");
    let of = |cost: &CodecCost| (cost.name.clone(), cost.encode, cost.decode, cost.bytes_per_element);
    let line = |seconds| Curve::Line(Line::new(0.0, seconds));
    let wanted = [
        ("qsgd 4 bit / 64".to_owned(), line(2.0e-9), line(1.0e-9), 0.5),
        ("topk 4 bit / 64".to_owned(), line(0.25e-9), line(0.125e-9), 0.25),
    ];
    assert_eq!(costs.iter().map(of).collect::<Vec<_>>(), wanted);
    let error = CodecCost::from_bench(&file(&[row("qsgd", "0", "1", "f32")])).expect_err("never ends").to_string();
    assert!(error.starts_with(r#"layer 0 ("qsgd 4 bit / 64"), field `encode_gbps` is zero"#), "{error}");
    assert!(matches!(CodecCost::from_bench("{}"), Err(PlanError::Json { .. })));
    // A recipe of the last two is refused in two phases, since it rotates the gradient.
    let rows = ["QSGD", "sign", "top-k", "PowerSGD", "EDEN", "DRIVE"].map(|codec| row(codec, "1", "1", "f32"));
    let costs = CodecCost::from_bench(&file(&rows)).expect("as written");
    assert_eq!(costs.iter().map(|cost| cost.two_phase).collect::<Vec<_>>(), [true, true, false, false, false, false]);
}

/// A plan names what a training can use: a row has the text of its recipe, where the file says enough.
#[test]
fn rows_are_called_by_their_recipes() {
    let name = |codec: &str, settings: &str| {
        let settings = format!(r#"{{"label": "as it is", "dtype": "f32", {settings}}}"#);
        let rates = r#""encode_gbps": 1, "decode_gbps": 1, "decode_add_gbps": null, "ratio": 2"#;
        let text = format!(r#"{{"rows": [{{"codec": "{codec}", "settings": {settings}, {rates}}}]}}"#);
        CodecCost::from_bench(&text).expect("as written").remove(0).name
    };
    let qsgd = r#""bits": 4, "bucket": 512, "norm": "max", "rounding": "stochastic", "packing": "none""#;
    assert_eq!(name("QSGD", qsgd), "qsgd:bits=4,bucket=512");
    assert_eq!(name("QSGD", &qsgd.replace("512", "null")), "qsgd:bits=4,bucket=whole");
    assert_eq!(name("top-k", r#""part": 0.001"#), "topk:0.001");
    assert_eq!(name("float", r#""recipe": "float:e4m3", "bits": 8"#), "float:e4m3");
    assert_eq!(name("QSGD", &format!(r#""recipe": "qsgd:bits=4,l2", {qsgd}"#)), "qsgd:bits=4,l2");
    for other in [qsgd.replace("max", "l2"), qsgd.replace("\"none", "\"elias"), qsgd.replace("stoch", "no")] {
        assert_eq!(name("QSGD", &other), "QSGD as it is");
    }
    assert_eq!(name("uniform", qsgd), "uniform as it is");
}
