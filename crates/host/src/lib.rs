//! entrain host: finds virtual machines, pairs with their guests, publishes to them and schedules them.
