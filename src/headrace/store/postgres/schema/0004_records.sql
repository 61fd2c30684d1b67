-- Records: small named values of other components, such as schedules. A sequence makes versions that are never used
-- again.
create sequence headrace.record_version;
create table headrace.records (
    kind    text  collate "C" not null,
    name    text  collate "C" not null,
    version int8  not null,
    value   bytea not null,
    primary key (kind, name)
) with (fillfactor = 50);
