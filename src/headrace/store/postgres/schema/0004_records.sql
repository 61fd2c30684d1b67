-- Records: small named values of other parts, such as schedules. A version is never used again, hence the sequence.
create sequence headrace.record_version;
create table headrace.records (
    kind    text  collate "C" not null,
    name    text  collate "C" not null,
    version int8  not null,
    value   bytea not null,
    primary key (kind, name)
) with (fillfactor = 50);
