//! Whole plans, and their charts.

use crate::common::Random;
use gradwire_planner::{
    Algorithm, CodecCost, Curve, Graph, Kind, Layer, Line, Message, Network, Plan, PlanError, Profile, Question,
    Resource, Verdict, gantt,
};

/// What times are multiples of.
const UNIT: f64 = 1.0 / 1_048_576.0;

fn codec(name: &str, seconds: f64, bytes_per_element: f64) -> CodecCost {
    let curve = Curve::Line(Line::new(0.0, seconds));
    let name = name.to_owned();
    CodecCost { name, encode: curve, decode: curve, bytes_per_element, sums: false, ..CodecCost::dense() }
}

fn question<'q>(profile: &'q Profile, codecs: &'q [CodecCost]) -> Question<'q> {
    let network = Network::new(0.0078125, 0.25).expect("a link");
    let algorithms = &[Algorithm::Ring, Algorithm::Tree];
    Question { profile, network, ranks: 4, codecs, algorithms, least_margin: 0.125, states: usize::MAX }
}

fn profile() -> Profile {
    let layers = vec![Layer::new("head", 64, 8.0), Layer::new("body", 16, 16.0), Layer::new("stem", 4, 4.0)];
    Profile::new(4.0, layers).expect("valid")
}

#[test]
fn a_cheap_codec_is_taken_and_a_dear_one_is_not() {
    let profile = profile();
    let cheap = [codec("cheap", 0.0, 0.125)];
    let plan = question(&profile, &cheap).plan().expect("valid");
    let Verdict::Compress { margin } = plan.verdict else { panic!("{plan}") };
    assert!(plan.complete && plan.seconds >= plan.compute && plan.seconds < plan.dense);
    assert_eq!(margin, (plan.dense - plan.seconds) / plan.dense);
    assert!(plan.groups.iter().any(|group| group.codec == "cheap" && group.algorithm == Algorithm::AllGather));

    let dear = [codec("dear", 8.0, 0.125)];
    let plan = question(&profile, &dear).plan().expect("valid");
    assert_eq!((plan.verdict, plan.seconds), (Verdict::DoNotCompress { margin: 0.0 }, plan.dense));
    assert!(plan.groups.iter().all(|group| group.codec == "dense"));
    assert!(plan.to_string().contains("do not compress"), "{plan}");

    let none = question(&profile, &[]).plan().expect("valid");
    assert_eq!((none.verdict, none.groups), (Verdict::DoNotCompress { margin: 0.0 }, plan.groups));
}

/// A training reads which tensors share a message, and by which recipe.
#[test]
fn messages_come_back_from_a_written_plan() {
    let profile = profile();
    let cheap = [codec("onebit", 0.0, 0.125)];
    let plan = question(&profile, &cheap).plan().expect("valid");
    let messages = Message::from_plan(&serde_json::to_string(&plan).expect("JSON")).expect("as written");
    assert_eq!(messages, plan.messages);
    let tensors = messages.iter().flat_map(|message| &message.tensors);
    assert!(tensors.map(|t| (t.name.as_str(), t.elements)).eq([("head", 64), ("body", 16), ("stem", 4)]));
    for (message, group) in messages.iter().zip(&plan.groups) {
        assert_eq!(message.tensors.len(), group.layers);
        assert_eq!(message.recipe, if group.codec == "dense" { "none" } else { "onebit" });
    }
    assert!(messages.iter().any(|message| message.recipe == "onebit"));
    let dense = question(&profile, &[]).plan().expect("valid");
    assert!(dense.messages.iter().all(|message| message.recipe == "none"));
}

#[test]
fn written_plans_that_cannot_be_sent_are_refused() {
    let message = |tensors: &str| format!(r#"{{"tensors": [{tensors}], "recipe": "none"}}"#);
    let plan = |messages: &[String]| Message::from_plan(&format!(r#"{{"messages": [{}]}}"#, messages.join(",")));
    let one = r#"{"name": "a", "elements": 3}"#;
    assert_eq!(plan(&[message(one)]).expect("valid").len(), 1);
    for (messages, wanted) in [
        (vec![], "message 0: there is none"),
        (vec![message(one), message("")], "message 1: it has no tensors"),
        (vec![message(&one.replace('3', "0"))], r#"message 0, tensor "a": it has no elements"#),
        (vec![message(one), message(one)], r#"message 1, tensor "a": it is in message 0 too"#),
        (vec![message(&[one, one].join(","))], r#"message 0, tensor "a": it is in message 0 too"#),
        (vec!["{}".to_owned()], "line 1, column"),
    ] {
        let error = plan(&messages).expect_err(wanted).to_string();
        assert!(error.starts_with(wanted), "{error}");
    }
}

/// A saving below the margin is no reason, and the plan is the one without.
#[test]
fn the_margin_decides() {
    let profile = profile();
    let cheap = [codec("cheap", 0.0, 0.125)];
    let question = question(&profile, &cheap);
    let Verdict::Compress { margin } = question.plan().expect("valid").verdict else { panic!("it saves") };
    let with = |least_margin| Question { least_margin, ..question.clone() }.plan();
    assert!(matches!(with(margin).expect("valid").verdict, Verdict::Compress { .. }));
    let more = with(margin + f64::EPSILON).expect("valid");
    assert_eq!((more.verdict, more.seconds), (Verdict::DoNotCompress { margin }, more.dense));
    assert!(more.groups.iter().all(|group| group.codec == "dense"));
    assert!(matches!(with(f64::NAN), Err(PlanError::NotFinite { .. })));
}

/// A plan's time is that of its chart's tasks, no row beats it, and its groups cover the layers in order.
#[test]
fn plans_are_what_they_say() {
    let mut random = Random(11);
    let mut compressed = 0;
    for _ in 0..300 {
        let profile = random.profile(12);
        let codecs = [codec("a", random.time(16), 0.5), codec("b", random.time(64), 0.03125)];
        let network = Network::new(random.time(64) + UNIT, random.time(4) + UNIT).expect("a link");
        let question = Question { network, least_margin: 0.0, ..question(&profile, &codecs) };
        let plan: Plan = question.plan().expect("valid");
        let rows = plan.rows.iter().map(|row| row.merged).fold(f64::INFINITY, f64::min);
        assert_eq!(plan.graph.schedule().expect("acyclic").makespan(), plan.seconds);
        assert!(plan.complete && plan.seconds <= rows && plan.seconds <= plan.dense);
        let mut next = 0;
        for group in &plan.groups {
            let layers = &profile.layers()[next..next + group.layers];
            assert_eq!((group.first, group.elements), (next, layers.iter().map(|l| l.elements).sum()));
            next += group.layers;
        }
        assert_eq!(next, profile.layers().len());
        compressed += u32::from(matches!(plan.verdict, Verdict::Compress { .. }));
    }
    assert!((30..270).contains(&compressed), "{compressed}: both verdicts must come up");
}

#[test]
fn one_rank_sends_nothing() {
    let (profile, codecs) = (profile(), [codec("cheap", 0.0, 0.125)]);
    let alone = Question { ranks: 1, ..question(&profile, &codecs) }.plan().expect("valid");
    assert_eq!((alone.seconds, alone.verdict), (32.0, Verdict::DoNotCompress { margin: 0.0 }));
}

#[test]
fn bad_questions_are_refused() {
    let (profile, codecs) = (profile(), [codec("negative", -1.0, 0.125)]);
    assert!(matches!(question(&profile, &codecs).plan(), Err(PlanError::Negative { .. })));
    let none = Question { ranks: 0, ..question(&profile, &[]) };
    assert!(matches!(none.plan(), Err(PlanError::Ranks { found: 0, .. })));
    let gather = Question { algorithms: &[Algorithm::AllGather], ..question(&profile, &[]) };
    assert!(matches!(gather.plan(), Err(PlanError::Missing(_))));
}

#[test]
fn charts_show_every_task_that_takes_time() {
    let mut graph = Graph::default();
    let first = graph.add("<a & b>\u{1}", Kind::Backward, Resource::Compute, 1.0, &[]);
    graph.add("nothing", Kind::Encode, Resource::Compute, 0.0, &[]);
    graph.add("exchange", Kind::Communicate, Resource::Network, 3.0, &[first]);
    let svg = gantt(&graph).expect("acyclic");
    assert_eq!(svg.matches("<title>").count(), 2);
    assert!(svg.contains("&lt;a &amp; b&gt; : 0.000 us to 1.000 s") && !svg.contains("nothing"), "{svg}");
    // The exchange takes three quarters of the 1000 units, after the first.
    assert!(svg.contains(r#"<rect x="340.000" y="70" width="750.000""#), "{svg}");
    assert!(gantt(&Graph::default()).expect("empty").ends_with("</svg>\n"));
    graph.add("stuck", Kind::Update, Resource::Compute, 1.0, &[3]);
    assert!(matches!(gantt(&graph), Err(PlanError::Cycle(_))));
}

/// In two phases each rank encodes a piece more, and decodes as much as two gradients, by hand: as above.
#[test]
fn a_quantizer_goes_in_two_phases_where_that_is_faster() {
    let profile = Profile::new(4.0, vec![Layer::new("only", 64, 8.0)]).expect("valid");
    let codecs = [CodecCost { two_phase: true, ..codec("a", 0.5, 0.125) }];
    let algorithms = &[Algorithm::Ring, Algorithm::TwoPhase];
    let plan = Question { algorithms, ..question(&profile, &codecs) }.plan().expect("valid");
    let row = plan.rows.iter().find(|row| row.algorithm == Algorithm::TwoPhase).expect("a row");
    // Encoded 32 s and a quarter of that; a gather of 3 heads of 24 bytes; 6 messages of 2 bytes; decoded twice.
    assert_eq!(row.single, 12.0 + 40.0 + 3.0 * 6.0078125 + 6.0 * 0.5078125 + 64.0);
    assert!(plan.rows.iter().any(|row| row.algorithm == Algorithm::AllGather && row.single > 140.0));
    // No such algorithm, or a codec whose sums cannot be encoded again: it is gathered.
    for (codecs, algorithms) in [(codecs.clone(), &algorithms[..1]), ([codec("a", 0.5, 0.125)], &algorithms[..])] {
        let plan = Question { algorithms, ..question(&profile, &codecs) }.plan().expect("valid");
        assert!(plan.rows.iter().all(|row| row.algorithm != Algorithm::TwoPhase));
    }
    // Between two ranks each sends its payload once, in one message or in two. Among many it is two payloads against
    // all.
    let cheap = [CodecCost { two_phase: true, ..codec("qsgd:bits=4,bucket=64", 0.0, 0.5) }];
    let profile = Profile::new(4.0, vec![Layer::new("only", 6400, 8.0)]).expect("valid");
    for (ranks, algorithm, recipe) in [
        (2, Algorithm::AllGather, "qsgd:bits=4,bucket=64"),
        (16, Algorithm::TwoPhase, "qsgd:bits=4,bucket=64+twophase"),
    ] {
        let plan = Question { ranks, algorithms, ..question(&profile, &cheap) }.plan().expect("valid");
        assert!(matches!(plan.verdict, Verdict::Compress { .. }));
        assert_eq!((plan.groups[0].algorithm, plan.messages[0].recipe.as_str()), (algorithm, recipe));
    }
}

/// A selection of a few ranks is gathered, and that of many merged along a tree: by hand, as above.
#[test]
fn a_selection_is_merged_along_a_tree_where_that_is_faster() {
    let profile = Profile::new(4.0, vec![Layer::new("only", 64, 8.0)]).expect("valid");
    let algorithms = &[Algorithm::Ring, Algorithm::MergeTree];
    let codecs = [CodecCost { selects: true, ..codec("a", 0.5, 0.125) }];
    let plan = Question { algorithms, ..question(&profile, &codecs) }.plan().expect("valid");
    let row = plan.rows.iter().find(|row| row.algorithm == Algorithm::MergeTree).expect("a row");
    // Encoded 32 s; a gather of heads; 2 messages up and 2 down, of 8 bytes each; 2 merges and a decode.
    assert_eq!(row.single, 12.0 + 32.0 + 3.0 * 6.0078125 + 4.0 * 2.0078125 + 96.0);
    for (codecs, algorithms) in [(codecs.clone(), &algorithms[..1]), ([codec("a", 0.5, 0.125)], &algorithms[..])] {
        let plan = Question { algorithms, ..question(&profile, &codecs) }.plan().expect("valid");
        assert!(plan.rows.iter().all(|row| row.algorithm != Algorithm::MergeTree));
    }
    // Three messages by turns against four. With 16 ranks, 15 against 8.
    let profile = Profile::new(4.0, vec![Layer::new("only", 6400, 8.0)]).expect("valid");
    for (ranks, name, algorithm, recipe) in [
        (4, "topk:0.01", Algorithm::AllGather, "topk:0.01"),
        (16, "topk:0.01", Algorithm::MergeTree, "topk:0.01+ef+gtopk"),
        (16, "topk:0.01+ef", Algorithm::MergeTree, "topk:0.01+ef+gtopk"),
    ] {
        let cheap = [CodecCost { selects: true, ..codec(name, 0.0, 0.5) }];
        let plan = Question { ranks, algorithms, ..question(&profile, &cheap) }.plan().expect("valid");
        assert!(matches!(plan.verdict, Verdict::Compress { .. }));
        assert_eq!((plan.groups[0].algorithm, plan.messages[0].recipe.as_str()), (algorithm, recipe));
    }
}

/// Who gathers decodes every rank's payload, by hand: one layer of 64 elements, 4 ranks.
#[test]
fn gathered_payloads_are_decoded_one_by_one() {
    let profile = Profile::new(4.0, vec![Layer::new("only", 64, 8.0)]).expect("valid");
    let codecs = [codec("a", 0.5, 0.125), CodecCost { sums: true, ..codec("b", 0.5, 0.125) }];
    let plan = question(&profile, &codecs).plan().expect("valid");
    let of = |name: &str, algorithm| {
        let row = plan.rows.iter().find(|row| row.codec == name && row.algorithm == algorithm).expect("a row");
        [row.wait_free, row.single, row.merged]
    };
    // Computed 12 s, encoded 32 s; 3 messages of 8 bytes, 2 s and a start each; decoded 4 times 32 s.
    assert_eq!(of("a", Algorithm::AllGather), [12.0 + 32.0 + 3.0 * 2.0078125 + 128.0; 3]);
    // Summed in 6 messages of 2 bytes; decoded once.
    assert_eq!(of("b", Algorithm::Ring), [12.0 + 32.0 + 6.0 * 0.5078125 + 32.0; 3]);
}
