//! Profiles of what torch's profiler has recorded.

use gradwire_planner::{PlanError, Profile};

/// Three iterations of a small network of torch 2.15, without the events that no reader needs.
const RECORDED: &str = include_str!("data/torch_trace.json");

/// Microseconds of a network's iterations, worked out from the file's times by hand: the forward pass, and what lies
/// before each gradient. The first iteration is left out, so a median is of two.
const FORWARD: f64 = 2001.5945;
const BEFORE: [f64; 6] = [107.786, 16.2235, 993.051, 11.958, 416.0155, 6.4535];

#[test]
fn a_recorded_trace_is_read() {
    let profile = Profile::from_torch_trace(RECORDED).expect("a trace");
    let near = |seconds: f64, microseconds: f64| (seconds * 1e6 - microseconds).abs() < 1e-6;
    assert!(near(profile.forward(), FORWARD), "{}", profile.forward());
    let names: Vec<&str> = profile.layers().iter().map(|layer| layer.name.as_str()).collect();
    assert_eq!(names, ["0: [10]", "1: [10, 64]", "2: [64]", "3: [64, 14400]", "4: [16, 3, 3, 3]", "5: [16]"]);
    let elements: Vec<u64> = profile.layers().iter().map(|layer| layer.elements).collect();
    assert_eq!(elements, [10, 640, 64, 921_600, 432, 16]);
    for (layer, before) in profile.layers().iter().zip(BEFORE) {
        assert!(near(layer.backward, before), "{}: {} and {before}", layer.name, layer.backward);
    }
}

#[test]
fn a_list_alone_and_events_in_any_order_are_read() {
    let start = RECORDED.find('[').expect("a list");
    let list = RECORDED[start..].trim_end().trim_end_matches('}');
    let profile = Profile::from_torch_trace(RECORDED);
    assert_eq!(Profile::from_torch_trace(list), profile);
    let mut events: Vec<serde_json::Value> = serde_json::from_str(list).expect("a list");
    events.reverse();
    assert_eq!(Profile::from_torch_trace(&serde_json::to_string(&events).expect("plain data")), profile);
}

#[test]
fn one_iteration_is_enough() {
    let mut events: Vec<serde_json::Value> =
        serde_json::from_str::<serde_json::Value>(RECORDED).expect("JSON")["traceEvents"]
            .as_array()
            .expect("a list")
            .clone();
    let end =
        events.iter().position(|event| event["name"].as_str().is_some_and(|name| name.starts_with("Optimizer.step")));
    events.truncate(end.expect("a step") + 1);
    let profile = Profile::from_torch_trace(&serde_json::to_string(&events).expect("plain data")).expect("a trace");
    assert!((profile.layers()[2].backward * 1e6 - 7486.339).abs() < 1e-6, "that of the first");
}

#[test]
fn what_is_no_trace_is_refused_at_its_place() {
    let cases = [
        (r#""traceEvents""#, r#""events""#, "no list of events"),
        ("Optimizer.step", "Schedule", "no Optimizer.step behind a backward pass"),
        ("torch::autograd::AccumulateGrad", "Accumulate", "no torch::autograd::AccumulateGrad"),
        (
            r#""Input Dims""#,
            r#""Shapes""#,
            r#"("torch::autograd::AccumulateGrad") has no `Input Dims`: record with record_shapes=True"#,
        ),
        (r#""dur""#, r#""length""#, "has no numbers `ts` and `dur`"),
        (r#""dur": "#, r#""dur": -"#, "has a negative `dur`"),
    ];
    for (from, to, wanted) in &cases {
        let error = Profile::from_torch_trace(&RECORDED.replace(from, to)).expect_err(wanted).to_string();
        assert!(error.contains(wanted), "{from} -> {to}: {error}");
    }
    let other = RECORDED.replacen("[[16, 3, 3, 3]]", "[[16, 3, 5, 5]]", 1);
    let error = Profile::from_torch_trace(&other).expect_err("another shape").to_string();
    assert!(error.contains("an iteration with other gradients"), "{error}");
    assert!(matches!(Profile::from_torch_trace("{"), Err(PlanError::Json { line: 1, .. })));
    assert!(matches!(Profile::from_torch_trace("[]"), Err(PlanError::Trace { event: None, .. })));
}
