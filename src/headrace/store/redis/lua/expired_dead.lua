-- Dead jobs past their time, the earliest end first.
-- ARGV: 1 clock, 2 µs to keep dead ones, 3 at most.  Answer: their ids
return c('ZRANGEBYSCORE', KEYS[1] .. DEAD, '-inf', clock(ARGV[1]) - ARGV[2], 'LIMIT', 0, ARGV[3])
