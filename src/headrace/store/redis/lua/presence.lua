-- Note who is there.
-- KEYS: the workers.  ARGV: 1 id, 2 record
c('HDEL', KEYS[1], ARGV[1])  -- as in settle: who works on a full server is to be seen there
c('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
