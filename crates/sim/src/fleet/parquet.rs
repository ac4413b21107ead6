//! Tables as Parquet, in programs that are built with the feature of that name: the library costs a tenth of the whole
//! project's build, and few need it.

use std::fs::File;
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::record::{Row as Record, RowAccessor as _};
use parquet::schema::parser::parse_message_type;

use super::Row;

/// The columns, in the order in which [`columns`] writes and [`row`] reads them.
const SCHEMA: &str = "message fleet {
    required binary sweep (STRING);
    required int32 host;
    required binary arm (STRING);
    required double ratio;
    required int32 pcpus;
    required int32 vcpus;
    required double wanted;
    required double busy;
    required double requests;
    required double wait_p50_us;
    required double wait_p99_us;
    required double wait_p999_us;
    required double wait_max_us;
    required double stolen;
    required int64 events;
    required binary trace (STRING);
}";

/// Values of one column.
enum Column {
    Text(Vec<ByteArray>),
    Int(Vec<i32>),
    Long(Vec<i64>),
    Double(Vec<f64>),
}

fn columns(rows: &[Row]) -> Vec<Column> {
    let text = |of: &dyn Fn(&Row) -> &str| Column::Text(rows.iter().map(|row| of(row).into()).collect());
    let int = |of: &dyn Fn(&Row) -> u32| Column::Int(rows.iter().map(|row| of(row) as i32).collect());
    let double = |of: &dyn Fn(&Row) -> f64| Column::Double(rows.iter().map(of).collect());
    vec![
        text(&|row| &row.sweep),
        int(&|row| row.host),
        text(&|row| &row.arm),
        double(&|row| row.ratio),
        int(&|row| row.pcpus),
        int(&|row| row.vcpus),
        double(&|row| row.wanted),
        double(&|row| row.busy),
        double(&|row| row.requests),
        double(&|row| row.wait_us[0]),
        double(&|row| row.wait_us[1]),
        double(&|row| row.wait_us[2]),
        double(&|row| row.wait_us[3]),
        double(&|row| row.stolen),
        Column::Long(rows.iter().map(|row| row.events as i64).collect()),
        text(&|row| &row.trace),
    ]
}

fn row(of: &Record) -> Result<Row, ParquetError> {
    let text = |at| of.get_string(at).cloned();
    let int = |at| of.get_int(at).map(|value| value as u32);
    Ok(Row {
        sweep: text(0)?,
        host: int(1)?,
        arm: text(2)?,
        ratio: of.get_double(3)?,
        pcpus: int(4)?,
        vcpus: int(5)?,
        wanted: of.get_double(6)?,
        busy: of.get_double(7)?,
        requests: of.get_double(8)?,
        wait_us: [of.get_double(9)?, of.get_double(10)?, of.get_double(11)?, of.get_double(12)?],
        stolen: of.get_double(13)?,
        events: of.get_long(14)? as u64,
        trace: text(15)?,
    })
}

fn put(writer: &mut SerializedColumnWriter<'_>, column: &Column) -> Result<usize, ParquetError> {
    match column {
        Column::Text(values) => writer.typed::<ByteArrayType>().write_batch(values, None, None),
        Column::Int(values) => writer.typed::<Int32Type>().write_batch(values, None, None),
        Column::Long(values) => writer.typed::<Int64Type>().write_batch(values, None, None),
        Column::Double(values) => writer.typed::<DoubleType>().write_batch(values, None, None),
    }
}

/// Writes rows into an empty file.
pub(super) fn write(file: &File, rows: &[Row]) -> Result<(), ParquetError> {
    let schema = Arc::new(parse_message_type(SCHEMA)?);
    let mut writer = SerializedFileWriter::new(file, schema, Default::default())?;
    let mut group = writer.next_row_group()?;
    for column in columns(rows) {
        let mut one = group.next_column()?.expect("the schema has as many columns");
        put(&mut one, &column)?;
        one.close()?;
    }
    group.close()?;
    writer.close()?;
    Ok(())
}

/// Reads rows.
pub(super) fn read(file: File) -> Result<Vec<Row>, ParquetError> {
    let reader = SerializedFileReader::new(file)?;
    if reader.metadata().file_metadata().schema() != &parse_message_type(SCHEMA)? {
        return Err(ParquetError::General("its columns are others".into()));
    }
    reader.get_row_iter(None)?.map(|record| row(&record?)).collect()
}
