//! From what a load printed to the figures that its experiment declares.

use crate::load::Printed;
use crate::metric::{Combine, Metric};

/// One guest's figures, in the order of the declared metrics.
pub(super) fn figures(output: &str, metrics: &[Metric]) -> Result<Vec<f64>, String> {
    let printed = Printed::parse(output).map_err(|error| error.to_string())?;
    let figure = |metric: &Metric| {
        let name = metric.from.as_deref().unwrap_or(metric.name.as_ref());
        printed.figure(name, &metric.unit).map_err(|error| error.to_string())
    };
    metrics.iter().map(figure).collect()
}

/// One value of several guests'; `values` is not empty.
pub(super) fn combine(values: &[f64], how: Combine) -> f64 {
    match how {
        Combine::Sum => values.iter().sum(),
        Combine::Mean => values.iter().sum::<f64>() / values.len() as f64,
        Combine::Max => values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        Combine::Min => values.iter().copied().fold(f64::INFINITY, f64::min),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metric(toml: &str) -> Metric {
        toml::from_str(toml).unwrap()
    }

    #[test]
    fn takes_the_named_figure_and_refuses_what_is_not_there() {
        let rate = metric("name = 'rate'\nfrom = 'ops_per_s'\nunit = '1/s'\nbetter = 'higher'");
        let text = "starting\n{\"metric\":\"ops_per_s\",\"value\":12.5,\"unit\":\"1/s\"}\n{\"metric\":\"p99\",\"value\":3,\"unit\":\"\"}\n";
        assert_eq!(figures(text, std::slice::from_ref(&rate)), Ok(vec![12.5]));
        let missing = metric("name = 'p50'\nunit = 'us'\nbetter = 'lower'");
        assert!(figures(text, &[missing]).unwrap_err().contains("ops_per_s, p99"));
        let other = metric("name = 'ops_per_s'\nunit = '1/min'\nbetter = 'higher'");
        assert!(figures(text, &[other]).unwrap_err().contains("1/min"));
        assert!(figures("{broken", &[rate]).is_err());
    }

    #[test]
    fn combines() {
        let values = [1.0, 2.0, 6.0];
        let all = [Combine::Sum, Combine::Mean, Combine::Max, Combine::Min].map(|how| combine(&values, how));
        assert_eq!(all, [9.0, 3.0, 6.0, 1.0]);
    }
}
