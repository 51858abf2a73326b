//! Graphs of tasks, and synchronous SGD as one.

use crate::common::Random;
use gradwire_planner::{Graph, Iteration, Kind, Layer, Overlap, PlanError, Profile, Resource, most_speed_up};

const OVERLAPS: [Overlap; 3] = [Overlap::Naive, Overlap::Input, Overlap::WaitFree];

#[test]
fn circles_are_refused_by_name() {
    let mut graph = Graph::default();
    let first = graph.add("first", Kind::Forward, Resource::Compute, 1.0, &[]);
    let second = graph.add("second", Kind::Communicate, Resource::Network, 1.0, &[first]);
    let third = graph.add("third", Kind::Decode, Resource::Decode, 1.0, &[second]);
    assert_eq!(graph.schedule().expect("a line").makespan(), 3.0);
    graph.wait(second, third);
    let circle = |graph: &Graph| match graph.schedule() {
        Err(PlanError::Cycle(names)) => names.join(" "),
        other => panic!("{other:?}"),
    };
    assert_eq!(circle(&graph), "second third second");
    // Through the order of a resource: a stream that waits for what is queued after it.
    let mut graph = Graph::default();
    graph.add("early", Kind::Forward, Resource::Compute, 1.0, &[1]);
    graph.add("late", Kind::Backward, Resource::Compute, 1.0, &[]);
    assert_eq!(circle(&graph), "early late early");
    let mut graph = Graph::default();
    graph.add("alone", Kind::Forward, Resource::Compute, 1.0, &[0]);
    assert_eq!(circle(&graph), "alone alone");
}

#[test]
fn bad_tasks_are_refused() {
    let mut graph = Graph::default();
    graph.add("lost", Kind::Forward, Resource::Compute, 1.0, &[7]);
    let wanted = PlanError::Task { task: "lost".to_owned(), found: 7, tasks: 1 };
    assert_eq!(graph.schedule(), Err(wanted));
    let mut graph = Graph::default();
    graph.add("undone", Kind::Forward, Resource::Compute, -1.0, &[]);
    assert!(graph.schedule().expect_err("negative").to_string().contains("undone"));
    assert_eq!(Graph::default().schedule().expect("nothing").makespan(), 0.0);
}

/// A schedule is right if nothing begins early and nothing could begin earlier.
#[test]
fn schedules_are_tight() {
    let mut random = Random(1);
    for _ in 0..2000 {
        let mut graph = Graph::default();
        for number in 0..random.below(12) as usize {
            let after: Vec<usize> = (0..number).filter(|_| random.below(4) == 0).collect();
            let resource = Resource::ALL[random.below(4) as usize];
            graph.add("task", Kind::Forward, resource, random.time(64), &after);
        }
        let schedule = graph.schedule().expect("no circle");
        for (number, task) in graph.tasks().iter().enumerate() {
            let (begin, end) = schedule.spans[number];
            assert_eq!(end, begin + task.seconds);
            let same = graph.tasks()[..number].iter().rposition(|other| other.resource == task.resource);
            let waits: Vec<f64> = task.after.iter().copied().chain(same).map(|n| schedule.spans[n].1).collect();
            assert!(waits.iter().all(|&wait| wait <= begin));
            assert!(begin == 0.0 || waits.contains(&begin));
        }
    }
}

fn iteration<'p>(random: &mut Random, profile: &'p Profile) -> Iteration<'p> {
    let communication = profile.layers().iter().map(|_| random.time(512)).collect();
    Iteration { profile, read: random.time(4096), copy: random.time(1024), update: random.time(64), communication }
}

/// In the long run each further iteration takes what the closed form says.
#[test]
fn graphs_take_what_the_closed_forms_say() {
    let mut random = Random(2);
    for _ in 0..2000 {
        let profile = random.profile(9);
        let iteration = iteration(&mut random, &profile);
        for overlap in OVERLAPS {
            let makespan =
                |count| iteration.graph(overlap, count).expect("valid").schedule().expect("acyclic").makespan();
            assert_eq!(makespan(9) - makespan(8), iteration.seconds(overlap).expect("valid"), "{overlap:?}");
        }
    }
}

#[test]
fn more_overlap_is_never_slower_and_gains_no_more_than_the_bound() {
    let mut random = Random(3);
    let mut gained = 0;
    for _ in 0..2000 {
        let profile = random.profile(9);
        let free = Iteration { read: 0.0, copy: 0.0, update: 0.0, ..iteration(&mut random, &profile) };
        let [naive, input, wait_free] = OVERLAPS.map(|overlap| free.seconds(overlap).expect("valid"));
        assert!(wait_free <= input && input <= naive);
        let communication = free.communication.iter().sum();
        let bound = most_speed_up(profile.forward(), profile.backward(), communication).expect("valid");
        if wait_free > 0.0 {
            assert!(naive / wait_free <= bound, "{} over {bound}", naive / wait_free);
            gained += u32::from(naive / wait_free > 1.0);
        }
        let alone = free.speed_up(Overlap::WaitFree, 8).expect("valid");
        assert!(alone.is_nan() || alone <= 8.0);
    }
    assert!(gained > 1000, "{gained}: the cases must have something to overlap");
}

/// The form in which the paper has the bound, on numbers whose quotients are exact.
#[test]
fn the_bound_is_the_published_one() {
    for (forward, backward, communication) in [(2.0, 4.0, 4.0), (4.0, 4.0, 8.0), (6.0, 2.0, 1.0), (0.0, 1.0, 1.0)] {
        let (f, b, c): (f64, f64, f64) = (forward, backward, communication);
        let r = c / b;
        let published = 1.0 + 1.0 / (f / b.min(c) + r.max(1.0 / r));
        let ours = most_speed_up(f, b, c).expect("valid");
        assert!((ours - published).abs() <= 4.0 * f64::EPSILON, "{ours} {published}");
    }
    assert_eq!(most_speed_up(0.0, 3.0, 3.0), Ok(2.0), "nothing gains more than two times");
    assert_eq!(most_speed_up(0.0, 0.0, 0.0), Ok(1.0));
    assert!(matches!(most_speed_up(1.0, f64::NAN, 1.0), Err(PlanError::NotFinite { .. })));
}

#[test]
fn bad_iterations_are_refused() {
    let profile = Profile::new(1.0, vec![Layer::new("only", 1, 1.0)]).expect("one layer is a profile");
    let good = Iteration { profile: &profile, read: 1.0, copy: 1.0, update: 1.0, communication: vec![1.0] };
    assert_eq!(good.seconds(Overlap::Naive), Ok(6.0));
    let short = Iteration { communication: vec![], ..good.clone() };
    assert!(matches!(short.seconds(Overlap::Input), Err(PlanError::Length { found: 0, wanted: 1, .. })));
    let negative = Iteration { communication: vec![-1.0], ..good.clone() };
    let error = negative.graph(Overlap::WaitFree, 1).expect_err("negative").to_string();
    assert_eq!(error, r#"layer 0 ("only"), field `communication` is -1, and may not be negative"#);
    assert!(matches!(Iteration { read: f64::NAN, ..good }.seconds(Overlap::Naive), Err(PlanError::NotFinite { .. })));
}
