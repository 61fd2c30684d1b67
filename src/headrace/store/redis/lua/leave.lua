-- On a cluster: take a queue off the list, unless a client has listed it again since the mark was noted.
-- KEYS: the list of queues, and the marks of those that leave.  ARGV: 1 the queue, 2 the mark.  Answer: 1: it is off the list.
if c('HGET', KEYS[2], ARGV[1]) ~= ARGV[2] then return 0 end
c('HDEL', KEYS[2], ARGV[1])
c('SREM', KEYS[1], ARGV[1])
return 1
