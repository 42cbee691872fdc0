//! The least nanoseconds of a step, over blocks of steps: CHECKPOINT BLOCKS STEPS.

use mlp::{Model, Phase};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let (blocks, steps): (u32, u32) = (arguments[2].parse()?, arguments[3].parse()?);
    let mut model = Model::create(&arguments[1])?;
    let bytes = |index| model.input_info(Phase::Train, index).map_or(0, |tensor| tensor.bytes);
    let (x, y) = (vec![0f32; bytes(0) / 4], vec![0i64; bytes(1) / 8]);
    let mut least = u128::MAX;
    for _ in 0..blocks {
        let begin = Instant::now();
        for _ in 0..steps {
            model.train_step(&[x[..].into(), y[..].into()])?;
            model.optimizer_step()?;
            model.lazy_reset_grad();
        }
        least = least.min(begin.elapsed().as_nanos() / u128::from(steps));
    }
    println!("{least}");
    Ok(())
}
