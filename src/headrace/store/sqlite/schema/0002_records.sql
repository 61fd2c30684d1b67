-- Records: small named values of other parts, such as schedules. A version is never used again, hence autoincrement.
create table headrace_record (
    version integer primary key autoincrement,
    kind text not null,
    name text not null,
    value blob not null
);
create unique index headrace_record_name on headrace_record (kind, name);
