-- `enqueue_members` stores jobs that are members of one group. `claim` locks no range beside the one that it takes without a search, and
-- serves a tenant that is alone by one walk.
select;
