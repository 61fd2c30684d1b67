-- Places of a batch that were not stored, because their key was used before or another job held their lock: with that job. A repeated
-- call gets the same answer, whatever has become of the key or the lock. Most batches have no rows here.
create table headrace.refused (
    batch uuid not null,
    ord   int4 not null,
    id    uuid not null,
    primary key (batch, ord)
);
