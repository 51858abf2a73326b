//! Ratios per layer, and devices per worker.

use crate::common::Random;
use gradwire_planner::{
    Adaptive, Curve, Graph, Kind, Layer, Line, PlanError, Profile, Resource, Scaling, delta, hybrid,
};

/// Every number of entries is tried beside the search.
#[test]
fn shares_are_the_most_that_hides() {
    let mut random = Random(9);
    let mut seen = [0; 3];
    for _ in 0..5_000 {
        let profile = random.profile(6);
        let costs = Adaptive {
            select: Curve::Line(Line::new(random.time(32), 0.0)),
            exchange: Line::new(random.time(64), random.time(4)),
            bytes_per_entry: 8.0,
            most_ratio: [1.0, 4.0, 1000.0][random.below(3) as usize],
        };
        let layers = profile.layers();
        for (index, (layer, share)) in layers.iter().zip(costs.shares(&profile).expect("valid")).enumerate() {
            let fewest = (1..=layer.elements).find(|&k| k as f64 * costs.most_ratio >= layer.elements as f64);
            let fewest = fewest.expect("all entries are enough");
            let fits = |k: &u64| layers.get(index + 1).is_some_and(|b| costs.seconds(layer.elements, *k) <= b.backward);
            let wanted = (fewest..=layer.elements).rev().find(fits);
            assert_eq!((share.entries, share.hidden), (wanted.unwrap_or(fewest), wanted.is_some()));
            seen[if !share.hidden { 0 } else { 1 + usize::from(share.entries < layer.elements) }] += 1;
        }
    }
    assert!(seen.iter().all(|&count| count > 500), "{seen:?}: all three cases must come up");
}

/// What the ratios are for: where every layer but the last hides, the exchange ends with the last layer's own, as a
/// graph of tasks says.
#[test]
fn hidden_layers_leave_the_last_exchange_alone() {
    let layers = vec![Layer::new("a", 64, 1.0), Layer::new("b", 64, 5.0), Layer::new("c", 64, 3.0)];
    let profile = Profile::new(2.0, layers).expect("valid");
    let costs =
        Adaptive { select: Curve::NONE, exchange: Line::new(1.0, 0.125), bytes_per_entry: 1.0, most_ratio: 64.0 };
    let shares = costs.shares(&profile).expect("valid");
    assert_eq!([32, 16, 1], [0, 1, 2].map(|layer: usize| shares[layer].entries));
    let mut graph = Graph::default();
    graph.add("forward", Kind::Forward, Resource::Compute, 2.0, &[]);
    for (layer, share) in profile.layers().iter().zip(&shares) {
        let ready = graph.add(&layer.name, Kind::Backward, Resource::Compute, layer.backward, &[]);
        let seconds = costs.seconds(layer.elements, share.entries);
        graph.add(&layer.name, Kind::Communicate, Resource::Network, seconds, &[ready]);
    }
    assert_eq!(graph.schedule().expect("acyclic").makespan(), 2.0 + 9.0 + 1.125);
}

#[test]
fn bad_ratios_are_refused() {
    let profile = Profile::new(1.0, vec![Layer::new("a", 64, 1.0)]).expect("valid");
    let good =
        Adaptive { select: Curve::NONE, exchange: Line::new(1.0, 0.125), bytes_per_entry: 1.0, most_ratio: 64.0 };
    assert_eq!(Adaptive { most_ratio: 0.5, ..good }.shares(&profile), Err(PlanError::Ratio { found: 0.5 }));
    assert!(matches!(Adaptive { most_ratio: f64::NAN, ..good }.shares(&profile), Err(PlanError::NotFinite { .. })));
    assert!(matches!(Adaptive { bytes_per_entry: -1.0, ..good }.shares(&profile), Err(PlanError::Negative { .. })));
}

/// One rank's largest entries keep the assumption; selections of ranks that cancel break it.
#[test]
fn delta_is_monitored() {
    assert_eq!(delta(&[4.0, 2.0, 2.0, 2.0], &[4.0, 0.0, 0.0, 0.0], 1), Ok(12.0 / 21.0));
    // Ranks (8, 1) and (-8, 1) send 8 and -8: of the sum (0, 2) nothing arrives, and 1 entry in 2 would leave a half.
    assert_eq!(delta(&[0.0, 2.0], &[0.0, 0.0], 1), Ok(2.0));
    assert_eq!(delta(&[0.0, 0.0], &[0.0, 0.0], 1), Ok(0.0));
    assert_eq!(delta(&[3.0], &[3.0], 1), Ok(0.0));
    assert_eq!(delta(&[3.0], &[1.0], 1), Ok(f64::INFINITY));
    assert!(matches!(delta(&[3.0], &[], 1), Err(PlanError::Length { .. })));
    assert!(matches!(delta(&[3.0], &[3.0], 2), Err(PlanError::Length { .. })));
}

/// The paper's inequality: doubling the workers' devices beats doubling the workers where the speed-up exceeds twice
/// the ratio of efficiencies times that of epochs.
#[test]
fn devices_go_where_the_inequality_says() {
    let mut random = Random(10);
    let mut went = [0; 2];
    for _ in 0..2_000 {
        let mut part = || (1 + random.below(64)) as f64 / 64.0;
        let (efficiency, more, speed_up) = (part(), part(), 1.0 + part());
        let [few, epochs, many] = [(); 3].map(|()| 1.0 + random.below(32) as f64);
        let at = |workers, efficiency, epochs| Scaling { workers, efficiency, epochs: Some(epochs) };
        let scaling = [at(1, 1.0, few), at(8, efficiency, epochs), at(16, more, many)];
        let split = hybrid(&scaling, &[(2, speed_up)], 16).expect("valid");
        // Only the two ways that use all 16 devices are compared, in whole numbers times powers of two.
        let wanted = speed_up * efficiency * many > 2.0 * more * epochs;
        let used = split.best.workers * split.best.devices_per_worker;
        if used == 16 {
            assert_eq!(split.best.devices_per_worker == 2, wanted, "{split:?}");
            went[usize::from(wanted)] += 1;
        }
        assert!(split.gain() >= 1.0 && split.data_parallel.devices_per_worker == 1);
    }
    assert!(went.iter().all(|&count| count > 100), "{went:?}");
}

/// Where more workers do not converge, the gain is the speed-up of model parallelism itself.
#[test]
fn beyond_convergence_the_gain_is_the_worker_s() {
    let at = |workers, epochs| Scaling { workers, efficiency: 1.0, epochs };
    let scaling = [at(1, Some(5.0)), at(16, Some(5.0)), at(32, None)];
    let split = hybrid(&scaling, &[(2, 1.25)], 32).expect("valid");
    assert_eq!((split.gain(), split.best.workers, split.best.speed_up), (1.25, 16, 20.0));
    let split = hybrid(&scaling, &[(2, 1.25)], 16).expect("valid");
    assert_eq!((split.gain(), split.best.devices_per_worker), (1.0, 1), "half the workers, at 1.25 times the speed");
}

#[test]
fn bad_curves_are_refused() {
    let good = Scaling { workers: 1, efficiency: 1.0, epochs: Some(5.0) };
    assert!(hybrid(&[good], &[], 1).is_ok());
    let place = |error: Result<_, PlanError>| error.expect_err("refused").to_string();
    assert!(place(hybrid(&[], &[], 1)).contains("epochs of 1 worker"));
    assert!(place(hybrid(&[Scaling { epochs: None, ..good }], &[], 1)).contains("epochs of 1 worker"));
    assert!(
        place(hybrid(&[good, Scaling { efficiency: f64::NAN, ..good }], &[], 1)).starts_with("layer 1 (\"scaling\")")
    );
    assert!(place(hybrid(&[good], &[(2, -1.0)], 1)).contains("may not be negative"));
    assert!(place(hybrid(&[good], &[], 0)).contains("nothing runs on none"));
}
