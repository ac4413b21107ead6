//! Figures and ratios as a reader wants to see them.

/// Three figures that count, with thousands set apart: `1,234,000`, `12.3`, `0.0123`.
pub fn number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let magnitude = value.abs().log10().floor() as i32;
    if magnitude >= 3 {
        let step = 10f64.powi((magnitude - 2).min(3));
        return thousands((value / step).round() * step);
    }
    // Rounding can carry into the next magnitude: 9.995 shows as 10.0.
    let decimals = (2 - magnitude).clamp(0, 9) as usize;
    let text = format!("{value:.decimals$}");
    if decimals > 0 { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

/// A ratio as a factor: `1.52×`.
pub fn factor(ratio: f64) -> String {
    if ratio >= 100.0 {
        format!("{}×", number(ratio))
    } else if ratio >= 10.0 {
        format!("{ratio:.1}×")
    } else {
        format!("{ratio:.2}×")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_figures() {
        let all = [1_234_567.0, 1234.4, 999.6, 99.96, 12.34, 12.0, 0.012345, 0.0, -45_678.0];
        let text: Vec<String> = all.iter().map(|value| number(*value)).collect();
        assert_eq!(text, ["1,235,000", "1,230", "1000", "100", "12.3", "12", "0.0123", "0", "-45,700"]);
    }
}
