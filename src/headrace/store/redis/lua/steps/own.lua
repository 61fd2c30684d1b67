-- The steps of a job that runs in this queue, as its lease says. Reads only.
-- ARGV: 1 id.  Answer: its steps, each with the number of those before it
return redis.call('HVALS', KEYS[1] .. JOURNAL .. ARGV[1])
