-- name: all
select name, version, value from headrace_record where kind = ? order by name;

-- name: version
select version from headrace_record where kind = ? and name = ?;

-- name: delete
delete from headrace_record where version = ?;

-- name: insert
insert into headrace_record (kind, name, value) values (?, ?, ?);
